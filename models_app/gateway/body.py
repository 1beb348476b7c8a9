"""Reads what the gateway must know of a request body, and nothing more of a large one. Pure."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic_core import from_json

from models_app.gateway import refusals

WHOLE_PARSE_BYTES = 128 * 1024
"""Bodies up to this size are parsed whole, so that bad JSON is told here; above, only the top level is walked."""

_MAX_DEPTH = 200
_SPACE = b" \t\n\r"
_TOKEN = re.compile(rb'["{}\[\]]')
_NOT_SPACE = re.compile(rb"[^ \t\n\r]")
_SCALAR_END = re.compile(rb"[,}\]\s]")


@dataclass(frozen=True, slots=True)
class Peek:
    """What the gateway knows of a body. `asks_usage` is whether the client sent any ``stream_options``."""

    model: str
    stream: bool
    has_stream_options: bool
    body: bytes


class _Odd(ValueError):
    """The walk met something that is not JSON as expected."""


def peek(body: bytes) -> Peek:
    """The model and stream members of a JSON request. Raises Refusal (400) with the member at fault."""
    members = _members(body)
    model = members.get("model")
    if model is None:
        raise refusals.bad_request("Name a model in the member 'model'.", "model", "model_required")
    if not isinstance(model, str) or not model:
        raise refusals.bad_request("'model' must be a non-empty string.", "model")
    stream = members.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise refusals.bad_request("'stream' must be true or false.", "stream")
    options = members.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise refusals.bad_request("'stream_options' must be an object.", "stream_options")
    return Peek(model, bool(stream), "stream_options" in members, body)


def with_usage(body: bytes) -> bytes:
    """`body` (a JSON object without ``stream_options``) asking for usage at the end of the stream."""
    start = body.index(b"{") + 1
    following = _NOT_SPACE.search(body, start)
    comma = b"" if following is not None and following.group() == b"}" else b","
    return b"".join((body[:start], b'"stream_options":{"include_usage":true}', comma, body[start:]))


def _members(body: bytes) -> dict[str, Any]:
    if len(body) > WHOLE_PARSE_BYTES:
        try:
            return _walk(body)
        except (_Odd, RecursionError):
            pass  # the whole parse says what is wrong, or that nothing is
    return _parse(body)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = _read(body)
    except UnicodeDecodeError:
        raise refusals.bad_request("The body is not UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise refusals.bad_request("The body is nested too deeply.", code="invalid_json") from None
    except json.JSONDecodeError as error:
        message = f"The body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        raise refusals.bad_request(message, code="invalid_json") from None
    except ValueError:
        raise refusals.bad_request("The body holds a number that cannot be read.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise refusals.bad_request("The body must be a JSON object.", code="invalid_json")
    return value


def _read(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError:
        return _DECODER.decode(body.decode())  # slower; it takes half characters, and words what is wrong


def _no_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is not JSON", "", 0)


_DECODER = json.JSONDecoder(parse_constant=_no_constant)

_WANTED: dict[str, Callable[[bytes], Any]] = {
    "model": json.loads,
    "stream": json.loads,
    "stream_options": json.loads,
}


def _walk(body: bytes) -> dict[str, Any]:
    """The wanted top-level members of a large object; the last of a name counts, as in every JSON reader."""
    found: dict[str, Any] = {}
    for name, start, end in _top_level(body):
        reader = _WANTED.get(name)
        if reader is not None:
            try:
                found[name] = reader(body[start:end])
            except ValueError as error:
                raise _Odd from error
    return found


def _top_level(body: bytes) -> Iterator[tuple[str, int, int]]:
    position = _skip_space(body, 0)
    if body[position : position + 1] != b"{":
        raise _Odd
    position = _skip_space(body, position + 1)
    if body[position : position + 1] == b"}":
        _end(body, position + 1)
        return
    while True:
        if body[position : position + 1] != b'"':
            raise _Odd
        after = _string_end(body, position)
        try:
            name = json.loads(body[position:after])
        except ValueError as error:
            raise _Odd from error
        position = _skip_space(body, after)
        if body[position : position + 1] != b":":
            raise _Odd
        start = _skip_space(body, position + 1)
        end = _value_end(body, start)
        yield name, start, end
        position = _skip_space(body, end)
        mark = body[position : position + 1]
        if mark == b"}":
            _end(body, position + 1)
            return
        if mark != b",":
            raise _Odd
        position = _skip_space(body, position + 1)


def _end(body: bytes, position: int) -> None:
    if _NOT_SPACE.search(body, position) is not None:
        raise _Odd


def _skip_space(body: bytes, position: int) -> int:
    found = _NOT_SPACE.search(body, position)
    if found is None:
        raise _Odd
    return found.start()


def _string_end(body: bytes, start: int) -> int:
    """The position behind the string that opens at `start`; long strings are skipped at the speed of memchr."""
    position = start + 1
    while True:
        quote = body.find(b'"', position)
        if quote < 0:
            raise _Odd
        slashes = quote
        while slashes > position and body[slashes - 1] == 0x5C:
            slashes -= 1
        if (quote - slashes) % 2 == 0:
            return quote + 1
        position = quote + 1


def _value_end(body: bytes, start: int) -> int:
    first = body[start : start + 1]
    if first == b'"':
        return _string_end(body, start)
    if first not in (b"{", b"["):
        end = _SCALAR_END.search(body, start)
        if end is None or end.start() == start:
            raise _Odd
        return end.start()
    depth, position = 0, start
    while True:
        token = _TOKEN.search(body, position)
        if token is None:
            raise _Odd
        mark = token.group()
        if mark == b'"':
            position = _string_end(body, token.start())
            continue
        depth += 1 if mark in b"{[" else -1
        position = token.end()
        if depth == 0:
            return position
        if depth > _MAX_DEPTH:
            raise _Odd
