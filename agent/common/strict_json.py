"""Strict JSON: bounded and unambiguous, so that two readers of one body can never understand different things."""

import json
import math
import re
from typing import Any, NoReturn

MAX_DEPTH = 32
"""Levels of arrays and objects. Our deepest message has five."""

MIN_INT, MAX_INT = -(2**63), 2**63 - 1
_MAX_INT_CHARACTERS = 20
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)
_FORBIDDEN = re.compile("[\x00\ud800-\udfff]")


class BadJson(ValueError):
    """A body that is not strict JSON. The text is a sentence that repeats nothing of the body."""


def parse(data: bytes) -> Any:
    """Return the value of `data`. Raises BadJson.

    Refused: anything but UTF-8, more than `MAX_DEPTH` levels, whole numbers beyond 64 bits, floats beyond range, NaN
    and infinities, NUL and unpaired surrogates in strings, duplicate keys in one object.
    """
    _check_depth(data)
    try:
        value = json.loads(
            data.decode(),
            parse_constant=_refuse_constant,
            parse_int=_bounded_int,
            parse_float=_bounded_float,
            object_pairs_hook=_unique,
        )
    except UnicodeDecodeError as error:
        raise BadJson(f"The body is not UTF-8 (byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise BadJson(f"The body is not JSON: {error.msg} (line {error.lineno}, column {error.colno}).") from None
    _check_strings(value)
    return value


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`. Raises BadJson, also for a value that is not an object."""
    value = parse(data)
    if not isinstance(value, dict):
        raise BadJson("The body must be one JSON object.")
    return value


def _check_depth(data: bytes) -> None:
    # Before the real parser, which is recursive. Brackets inside strings do not count.
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        token = match.group()
        if token in (b"[", b"{"):
            depth += 1
            if depth > MAX_DEPTH:
                raise BadJson(f"The body is nested deeper than {MAX_DEPTH} levels.")
        elif token in (b"]", b"}"):
            depth -= 1


def _refuse_constant(name: str) -> NoReturn:
    raise BadJson(f"The body contains {name}, which is not JSON.")


def _bounded_int(text: str) -> int:
    # Check the length first: the conversion of a million digits takes seconds.
    if len(text) > _MAX_INT_CHARACTERS or not MIN_INT <= (value := int(text)) <= MAX_INT:
        raise BadJson("The body contains a whole number beyond 64 bits.")
    return value


def _bounded_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise BadJson("The body contains a number that is too large.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise BadJson("The body contains a duplicate key.")
    return value


def _check_strings(value: Any) -> None:
    if isinstance(value, str):
        if _FORBIDDEN.search(value):
            raise BadJson("The body contains a string with NUL or an unpaired surrogate.")
    elif isinstance(value, dict):
        for name, member in value.items():
            _check_strings(name)
            _check_strings(member)
    elif isinstance(value, list):
        for member in value:
            _check_strings(member)
