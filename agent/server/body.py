"""Strict reading of JSON bodies: what is not plain, bounded JSON is refused with a sentence, never with a crash."""

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

from aiohttp import web
from pydantic import ValidationError

from agent.errors import AgentError
from agent.wire.base import JSON_BODY_LIMIT, WireModel
from agent.wire.errors import AgentCode

T = TypeVar("T", bound=WireModel)

MAX_DEPTH = 32
MAX_INT = 2**63 - 1
_MAX_INT_DIGITS = 20
_UNWANTED = re.compile(r"[\x00\ud800-\udfff]")


def _refuse(why: str) -> NoReturn:
    raise AgentError(AgentCode.INVALID_REQUEST, f"the body is not acceptable: {why}")


def _int(text: str) -> int:
    if len(text) > _MAX_INT_DIGITS or abs(number := int(text)) > MAX_INT:
        _refuse("a whole number is beyond 64 bits")
    return number


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse("a number is too large")
    return number


def _constant(text: str) -> NoReturn:
    _refuse(f"{text} is not JSON")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        _refuse("a name stands twice in one object")
    return value


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`. AgentError INVALID_REQUEST for anything else.

    Also refused: more than 32 levels, numbers beyond 64 bits, NaN and infinities, NUL or lone surrogates in a text,
    a name twice in one object, anything but UTF-8.
    """
    try:
        text = data.decode("utf-8")
        value = json.loads(text, parse_int=_int, parse_float=_float, parse_constant=_constant, object_pairs_hook=_pairs)
    except UnicodeDecodeError:
        _refuse("it is not UTF-8")
    except RecursionError:
        _refuse(f"it is nested deeper than {MAX_DEPTH} levels")
    except json.JSONDecodeError as error:
        _refuse(f"it is not JSON ({error.msg} at character {error.pos})")
    if not isinstance(value, dict):
        _refuse("it must be one JSON object")
    _check(value)
    return value


def _check(value: dict[str, Any]) -> None:
    """Walks without recursion, level by level."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            parts: Iterable[Any]
            if isinstance(item, dict):
                parts = (*item.keys(), *item.values())
            elif isinstance(item, list):
                parts = item
            else:
                if isinstance(item, str) and _UNWANTED.search(item):
                    _refuse("a text holds a NUL character or half a surrogate pair")
                continue
            below.extend(parts)
        if not below:
            return
        level = below
    _refuse(f"it is nested deeper than {MAX_DEPTH} levels")


async def read_bytes(request: web.Request, limit: int = JSON_BODY_LIMIT) -> bytes:
    """The whole body. AgentError PAYLOAD_TOO_LARGE past `limit` bytes, without reading further."""
    declared = request.content_length
    chunks: list[bytes] = []
    size = 0
    if declared is None or declared <= limit:
        async for chunk in request.content.iter_any():
            size += len(chunk)
            if size > limit:
                break
            chunks.append(chunk)
        else:
            return b"".join(chunks)
    raise AgentError(AgentCode.PAYLOAD_TOO_LARGE, f"the body is larger than {limit} bytes", {"limitBytes": limit})


def parse_message(model: type[T], value: dict[str, Any]) -> T:
    """`value` as a message. AgentError INVALID_REQUEST names each wrong field and repeats none of what was sent."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = [
            {"field": ".".join(map(str, item["loc"])), "problem": item["msg"]}
            for item in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        named = "; ".join(f"{item['field']}: {item['problem']}" for item in problems[:5])
        raise AgentError(AgentCode.INVALID_REQUEST, f"the body does not fit: {named}", {"problems": problems}) from None
