"""JSON as ``/api`` takes it: strict, bounded, and refused with a sentence."""

import json
import re
from typing import Any, NoReturn

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from mirbad.api.problems import PayloadTooLarge

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_DIGITS = 18

_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


class StrictJSONParser(BaseParser):
    """Reads at most `MAX_BYTES` of UTF-8 JSON without duplicate names, NaN, huge numbers, NUL or lone surrogates."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        """The value that the body states. Raises ParseError (400) or PayloadTooLarge (413)."""
        data: bytes = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise PayloadTooLarge(f"The body is larger than {MAX_BYTES} bytes.")
        return parse(data)


def parse(data: bytes) -> Any:
    """`data` as a JSON value. Raises ParseError that says what is wrong."""
    _check_depth(data)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(f"The body is not UTF-8 (byte {error.start}).") from None
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_int=_bounded_int,
            parse_float=_bounded_float,
            object_pairs_hook=_unique,
        )
    except json.JSONDecodeError as error:
        raise ParseError(f"The body is not JSON: {error.msg} (line {error.lineno}, column {error.colno}).") from None
    _check_text(value)
    return value


def _check_depth(data: bytes) -> None:
    # Before the real parser, which would recurse. Brackets inside strings do not count.
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        token = match.group()
        if token in (b"[", b"{"):
            depth += 1
            if depth > MAX_DEPTH:
                raise ParseError(f"The body is nested deeper than {MAX_DEPTH} levels.")
        elif token in (b"]", b"}"):
            depth -= 1


def _refuse_constant(name: str) -> NoReturn:
    raise ParseError(f"{name} is not a JSON number.")


def _bounded_int(text: str) -> int:
    if len(text.lstrip("-")) > MAX_DIGITS:
        raise ParseError(f"A number has more than {MAX_DIGITS} digits.")
    return int(text)


def _bounded_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ParseError("A number is too large.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ParseError("An object names the same member twice.")
    return result


def _check_text(value: Any) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise ParseError("A text contains NUL.")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ParseError("A text contains half of a surrogate pair.")
    elif isinstance(value, dict):
        for name, inner in value.items():
            _check_text(name)
            _check_text(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_text(inner)
