"""Strict reading of a request body: what a parser could be fooled or exhausted by is refused as a bad request."""

import json
import re
from typing import Any

from pydantic import ValidationError

from agent.wire.enroll import EnrollRequest
from mirbad.kernel.errors import InvalidRequest

_DEPTH_LIMIT = 16
_INT_DIGITS = 19
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_FORBIDDEN = re.compile("[\x00\ud800-\udfff]")


def read_enroll_request(body: bytes) -> EnrollRequest:
    """The request in `body`. Raises InvalidRequest; the sentence never repeats what was sent."""
    value = strict_json(body)
    if not isinstance(value, dict):
        raise InvalidRequest("The body must be one JSON object.")
    try:
        return EnrollRequest.model_validate(value)
    except ValidationError as error:
        problems = [
            {
                "code": "invalid",
                "message": f"{item['msg']}.",
                "field": ".".join(str(part) for part in item["loc"])[:100],
            }
            for item in error.errors(include_url=False, include_input=False, include_context=False)[:10]
        ]
        text = " ".join(f"{problem['field']}: {problem['message']}" for problem in problems)
        raise InvalidRequest(text, problems=problems) from None


def strict_json(body: bytes) -> Any:
    """The JSON value in `body`. Raises InvalidRequest for anything that is not plain, shallow, unambiguous JSON."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("The body is not UTF-8.") from None
    if _too_deep(text):
        raise InvalidRequest(f"The body is nested more than {_DEPTH_LIMIT} levels deep.")
    try:
        value = json.loads(text, parse_int=_integer, parse_constant=_no_constant, object_pairs_hook=_object)
    except InvalidRequest:
        raise
    except (ValueError, RecursionError):
        raise InvalidRequest("The body is not valid JSON.") from None
    _check_texts(value)
    return value


def _too_deep(text: str) -> bool:
    depth = 0
    for match in _TOKENS.finditer(text):
        mark = match.group()
        if mark in "[{":
            depth += 1
            if depth > _DEPTH_LIMIT:
                return True
        elif mark in "]}":
            depth -= 1
    return False


def _integer(digits: str) -> int:
    if len(digits) > _INT_DIGITS:
        raise InvalidRequest("The body holds a number that is too large.")
    return int(digits)


def _no_constant(name: str) -> Any:
    raise InvalidRequest(f"The body holds {name}, which is not JSON.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise InvalidRequest("The body names a member twice.")
    return value


def _check_texts(value: Any) -> None:
    if isinstance(value, str):
        if _FORBIDDEN.search(value):
            raise InvalidRequest("The body holds a character that no text may hold.")
    elif isinstance(value, dict):
        for name, member in value.items():
            _check_texts(name)
            _check_texts(member)
    elif isinstance(value, list):
        for member in value:
            _check_texts(member)
