"""Reads token usage on the side of an answer, and keeps the one event from a client that did not ask for it. Pure."""

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import from_json

HOLD_BYTES = 64 * 1024
"""An unfinished event longer than this is passed on unread: no usage event is so long."""
WHOLE_PARSE_BYTES = 1024 * 1024
TAIL_BYTES = 16 * 1024

_DECODER = json.JSONDecoder()
_MARK = b'"usage"'
_ERROR_MARK = b'"error"'
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n")
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer; None was not reported."""

    prompt: int | None
    completion: int | None


class Reader(Protocol):
    """Takes the bytes of an answer as they come; what `feed` and `finish` give goes to the client."""

    def feed(self, data: bytes) -> bytes:
        """What goes to the client now."""

    def finish(self) -> bytes:
        """What goes to the client at the end of the body."""

    @property
    def usage(self) -> Usage | None:
        """What was reported, as far as is known."""

    @property
    def failed(self) -> bool:
        """Whether the engine told of its own failure inside an answer that began well."""


def _count(value: Any) -> int | None:
    return value if value.__class__ is int and value >= 0 else None  # a bool is none


def usage_of(answer: Any) -> Usage | None:
    """The usage that a JSON answer or event reports, wherever its kind of endpoint puts it. ``null`` is silent."""
    if not isinstance(answer, dict):
        return None
    found: Any = answer.get("usage")
    if isinstance(found, dict):
        return _usage(found)
    for member in ("response", "message"):
        inner = answer.get(member)
        if not isinstance(found, dict) and isinstance(inner, dict):
            found = inner.get("usage")
    return _usage(found)


def _usage(found: Any) -> Usage | None:
    if not isinstance(found, dict):
        return None
    prompt = _count(found["prompt_tokens"] if "prompt_tokens" in found else found.get("input_tokens"))
    completion = _count(found["completion_tokens"] if "completion_tokens" in found else found.get("output_tokens"))
    return Usage(prompt, completion) if prompt is not None or completion is not None else None


def _merged(before: Usage | None, new: Usage) -> Usage:
    """The later report counts; what it leaves out stays (input at the start, output at the end)."""
    if before is None:
        return new
    return Usage(
        new.prompt if new.prompt is not None else before.prompt,
        new.completion if new.completion is not None else before.completion,
    )


def _json(text: bytes) -> Any:
    try:
        return from_json(text)
    except ValueError:
        pass
    try:
        return _DECODER.decode(text.decode())  # slower; it takes half characters
    except (ValueError, RecursionError):
        return None


def _data(event: bytes) -> bytes:
    parts = []
    for line in _LINE_END.split(event):
        if line.startswith(b"data:"):
            value = line[5:]
            parts.append(value[1:] if value.startswith(b" ") else value)
    return b"\n".join(parts)


class EventReader:
    """Server-sent events, split anywhere. With `withhold`, the usage-only event is kept from the client.

    Without `withhold` every byte goes on at once and a copy is read. With it, at most one unfinished event is held
    until it ends, and all bytes but those of the usage-only event come out unchanged and in order.
    """

    def __init__(self, *, withhold: bool) -> None:
        self._withhold = withhold
        self._held = b""
        self._skipping = False
        self._usage: Usage | None = None
        self.failed = False

    @property
    def usage(self) -> Usage | None:
        """The last usage that was reported."""
        return self._usage

    def feed(self, data: bytes) -> bytes:
        """What goes to the client now."""
        if (
            not self._held
            and not self._skipping
            and _MARK not in data
            and _ERROR_MARK not in data
            and data.endswith(b"\n\n")
        ):
            return data  # whole events, none with usage: nearly every call
        passed = self._read(data)
        return passed if self._withhold else data

    def finish(self) -> bytes:
        """What is left at the end of the body; an unfinished last event is read as an event."""
        held, self._held = self._held, b""
        passed = b"" if self._is_usage_only(held) else held
        return passed if self._withhold else b""

    def _read(self, data: bytes) -> bytes:
        text = self._held + data if self._held else data
        # An end of two or three bytes may itself be split: look again at the last bytes that are held.
        start, search = 0, max(0, len(self._held) - 3)
        out: list[bytes] = []
        while (end := _EVENT_END.search(text, search)) is not None:
            event = text[start : end.end()]
            start = search = end.end()
            if self._skipping:
                self._skipping = False
                out.append(event)
            elif not self._is_usage_only(event):
                out.append(event)
        rest = text[start:]
        if self._skipping or len(rest) > HOLD_BYTES:
            # The last bytes stay, so that an end split over two pieces is still seen.
            self._skipping = True
            out.append(rest[:-3])
            rest = rest[-3:]
        self._held = rest
        return b"".join(out)

    def _is_usage_only(self, event: bytes) -> bool:
        if _ERROR_MARK in event and not self.failed:
            answer = _json(_data(event))
            self.failed = isinstance(answer, dict) and bool(answer.get("error"))
        if _MARK not in event:
            return False
        answer = _json(_data(event))
        found = usage_of(answer)
        if found is None:
            return False
        self._usage = _merged(self._usage, found)
        return isinstance(answer, dict) and answer.get("choices") == []


class JsonReader:
    """One JSON answer: parsed whole when small, else its end is looked at. Bytes pass untouched."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._large = False
        self._usage: Usage | None = None
        self.failed = False

    @property
    def usage(self) -> Usage | None:
        """The usage, known after `finish`."""
        return self._usage

    def feed(self, data: bytes) -> bytes:
        """`data`, as it came."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > (TAIL_BYTES * 4 if self._large else WHOLE_PARSE_BYTES):
            self._large = True
            tail = b"".join(self._parts)[-TAIL_BYTES:]
            self._parts, self._size = [tail], len(tail)
        return data

    def finish(self) -> bytes:
        """Read the usage; nothing is left for the client."""
        text = b"".join(self._parts)
        self._parts = []
        if not self._large:
            self._usage = usage_of(_json(text))
            return b""
        position = text.rfind(_MARK)
        while position >= 0 and self._usage is None:
            after = text[position + len(_MARK) :].lstrip()
            if after.startswith(b":"):
                self._usage = _usage(_leading_json(after[1:]))
            position = text.rfind(_MARK, 0, position)
        return b""


class NoReader:
    """An answer without usage (sound, images, errors): bytes pass."""

    usage: Usage | None = None
    failed = False

    def feed(self, data: bytes) -> bytes:
        """`data`, as it came."""
        return data

    def finish(self) -> bytes:
        """Nothing."""
        return b""


def _leading_json(text: bytes) -> Any:
    try:
        value, _ = _DECODER.raw_decode(text.decode("utf-8", "replace").lstrip())
    except (ValueError, RecursionError):
        return None
    return value


def reader_of(status: int, kind: bytes, *, compressed: bool, withhold: bool) -> Reader:
    """What reads an answer of the content type `kind`: nothing of errors, of compressed bytes, of sound and images."""
    if not 200 <= status < 300 or compressed:
        return NoReader()
    if kind[:17].lower() == b"text/event-stream":
        return EventReader(withhold=withhold)
    return JsonReader() if b"json" in kind else NoReader()
