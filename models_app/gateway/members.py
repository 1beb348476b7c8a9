"""The top-level members of a large JSON object, found in steps of bounded cost. Its values are not built. Pure.

Each step reads at most `STEP_BYTES`, which takes about a millisecond whatever the bytes are. Between steps the event
loop serves others. Only the structure outside strings is followed: an invalid value is left for the engine to refuse.
"""

import json
import re
from collections.abc import Generator
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that pauses at each ``yield`` and returns its result at the end."""

STEP_BYTES = 16 * 1024
MAX_MEMBERS = 1000
MAX_DEPTH = 200
_MEMBERS_A_STEP = 16
_NAME_BYTES = 128
_FIRST_BYTES, _EXACT_BYTES = 256, 64
_PAIRS_ROUNDS = 8

NOT_SPACE = re.compile(rb"[^ \t\n\r]")
_REST_OF_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+(")?', re.DOTALL)
_NUMBER = rb"-?(?:0|[1-9][0-9]{0,4299})(?:\.[0-9]{1,4299})?(?:[eE][+-]?[0-9]{1,300})?"
_SCALAR = re.compile(rb"(?:true|false|null|" + _NUMBER + rb")(?=[,}\]\s]|\Z)")
_TO_ROUND = bytes.maketrans(b"[]{}", b"()()")
_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_OPEN, _CLOSE, _QUOTE, _SLASH = b"(", b")", 0x22, 0x5C
_LEVELS = {0x28: 1, 0x29: -1}


class NotAnObject(ValueError):
    """The bytes are not one JSON object; the text says why."""


def find(body: bytes | bytearray, names: frozenset[str]) -> Steps[dict[str, tuple[int, int]]]:
    """Return the positions of the values of the members `names`; the last of a name wins. Raises NotAnObject."""
    found: dict[str, tuple[int, int]] = {}
    position = yield from _skip_space(body, 0)
    _expect(body, position, b"{")
    position = yield from _skip_space(body, position + 1)
    if body[position] == 0x7D:
        yield from _end(body, position + 1)
        return found
    paused = position
    for count in range(1, MAX_MEMBERS + 1):
        _expect(body, position, b'"')
        after = yield from _string_end(body, position + 1)
        name = _name(body, position, after)
        position = yield from _skip_space(body, after)
        _expect(body, position, b":")
        start = yield from _skip_space(body, position + 1)
        end = yield from _value_end(body, start)
        if name in names:
            found[name] = (start, end)
        position = yield from _skip_space(body, end)
        if body[position] == 0x7D:
            yield from _end(body, position + 1)
            return found
        _expect(body, position, b",")
        position = yield from _skip_space(body, position + 1)
        if count % _MEMBERS_A_STEP == 0 or position - paused > STEP_BYTES:
            paused = position
            yield
    raise NotAnObject(f"it has more than {MAX_MEMBERS} members")


def run(steps: Steps[T]) -> T:
    """Return the result of `steps`, all done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def _expect(body: bytes | bytearray, position: int, mark: bytes) -> None:
    if body[position : position + 1] != mark:
        raise NotAnObject(f"{mark.decode()} is missing at byte {position + 1}")


def _name(body: bytes | bytearray, start: int, end: int) -> str:
    if end - start > _NAME_BYTES:
        return ""
    try:
        return str(json.loads(body[start:end]))
    except ValueError:
        raise NotAnObject(f"the name at byte {start + 1} is invalid") from None


def _skip_space(body: bytes | bytearray, position: int) -> Steps[int]:
    while (found := NOT_SPACE.search(body, position, position + STEP_BYTES)) is None:
        position += STEP_BYTES
        if position >= len(body):
            raise NotAnObject("it ends too early")
        yield
    return found.start()


def _end(body: bytes | bytearray, position: int) -> Steps[None]:
    while position < len(body):
        if (found := NOT_SPACE.search(body, position, position + STEP_BYTES)) is not None:
            raise NotAnObject(f"something follows it at byte {found.start() + 1}")
        position += STEP_BYTES
        yield


def _string_end(body: bytes | bytearray, position: int) -> Steps[int]:
    """Return the position after the closing quote of the string whose content starts at `position`."""
    while True:
        found = _REST_OF_STRING.match(body, position, position + STEP_BYTES)
        if found is None or found.end() == position:
            raise NotAnObject("it ends inside a string")
        position = found.end()
        if found.group(1) is not None:
            return position
        yield


def _value_end(body: bytes | bytearray, start: int) -> Steps[int]:
    first = body[start]
    if first == _QUOTE:
        return (yield from _string_end(body, start + 1))
    if first in b"{[":
        return (yield from _nested_end(body, start))
    found = _SCALAR.match(body, start)
    if found is None:
        raise NotAnObject(f"the value at byte {start + 1} is invalid")
    return found.end()


def _nested_end(body: bytes | bytearray, start: int) -> Steps[int]:
    """Return the position after the array or object that starts at `start`.

    Strings are removed by splitting at quotes, then only brackets are kept: all in C, at memory speed.
    """
    depth, position, size, inside = 1, start + 1, _FIRST_BYTES, False
    while True:
        chunk = _whole_escapes(bytes(body[position : position + size]))
        if not chunk:
            raise NotAnObject("it ends inside a value")
        clean = chunk.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in chunk else chunk
        parts = clean.split(b'"')
        brackets = b"".join(parts[inside::2]).translate(_TO_ROUND, _NOT_BRACKETS)
        lowest, highest = _bounds(brackets, depth)
        if lowest <= 0 and size > _EXACT_BYTES:
            size = max(size // 8, _EXACT_BYTES)
        elif lowest <= 0:
            end, depth, inside = _exact(chunk, depth, inside=inside)
            if end:
                return position + end
            position += len(chunk)
        else:
            if highest > MAX_DEPTH:
                _check_depth(brackets, depth)
            depth += brackets.count(_OPEN) - brackets.count(_CLOSE)
            inside ^= len(parts) % 2 == 0
            position += len(chunk)
            if size == STEP_BYTES:
                yield
            size = min(size * 2, STEP_BYTES)


def _whole_escapes(chunk: bytes) -> bytes:
    """Return `chunk` without the first byte of an escape at its end."""
    slashes = len(chunk) - len(chunk.rstrip(b"\\"))
    return chunk[:-1] if slashes % 2 else chunk


def _bounds(brackets: bytes, depth: int) -> tuple[int, int]:
    """Return the lowest depth within `brackets`, and a depth that is at least the highest."""
    closed, opened = brackets.count(_CLOSE), brackets.count(_OPEN)
    if depth > closed and depth + opened <= MAX_DEPTH:
        return depth - closed, depth + opened
    rounds = 0
    while rounds < _PAIRS_ROUNDS and b"()" in brackets:
        brackets = brackets.replace(b"()", b"")  # takes one level off the top and changes no minimum
        rounds += 1
    levels = list(accumulate(map(_LEVELS.__getitem__, brackets), initial=depth))
    return min(levels), max(levels) + rounds


def _check_depth(brackets: bytes, depth: int) -> None:
    if max(accumulate(map(_LEVELS.__getitem__, brackets), initial=depth)) > MAX_DEPTH:
        raise NotAnObject(f"it is nested deeper than {MAX_DEPTH} levels")


def _exact(chunk: bytes, depth: int, *, inside: bool) -> tuple[int, int, bool]:
    """Return the position in `chunk` after the bracket that ends the value, 0 if none does; the depth; the state."""
    escaped = False
    for position, byte in enumerate(chunk, 1):
        if escaped:
            escaped = False
        elif inside and byte == _SLASH:
            escaped = True
        elif byte == _QUOTE:
            inside = not inside
        elif not inside and byte in b"{[":
            depth += 1
        elif not inside and byte in b"}]":
            depth -= 1
            if depth == 0:
                return position, 0, False
    return 0, depth, inside
