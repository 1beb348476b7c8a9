"""Token usage, read from a copy of the response; the usage event is withheld if downstream did not ask for it. Pure."""

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import from_json

HOLD_BYTES = 64 * 1024
"""A longer unfinished event is passed on unread: no usage event is that long."""
WHOLE_PARSE_BYTES = 1024 * 1024
TAIL_BYTES = 16 * 1024
MOST_TOKENS = 100_000_000
"""No response has more; an engine that reports more is wrong, and its report counts as none."""

_DECODER = json.JSONDecoder()
_MARK = b'"usage"'
_ERROR_MARK = b'"error"'
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n")
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one response; None means not reported."""

    prompt: int | None
    completion: int | None


class UsageReader(Protocol):
    """A reader of one response, chunk by chunk. The bytes that `feed` and `finish` return are sent downstream."""

    def feed(self, data: bytes) -> bytes:
        """Read a chunk. Return the bytes to send downstream now."""

    def finish(self) -> bytes:
        """End the body. Return the remaining bytes to send downstream."""

    @property
    def events(self) -> int:
        """Return the number of events so far: about one a token."""

    @property
    def usage(self) -> TokenUsage | None:
        """Return the usage reported so far."""

    @property
    def failed(self) -> bool:
        """Return whether the engine reported an error inside a response with a successful status."""


def _count(value: Any) -> int | None:
    """Return a number of tokens, None for anything that cannot be one. `bool` is a subclass of `int`."""
    return value if value.__class__ is int and 0 <= value <= MOST_TOKENS else None


def usage_of(document: Any) -> TokenUsage | None:
    """Return the usage in a JSON response or event, wherever its API puts it. ``null`` counts as not reported."""
    if not isinstance(document, dict):
        return None
    found: Any = document.get("usage")
    if isinstance(found, dict):
        return _usage(found)
    for member in ("response", "message"):
        inner = document.get(member)
        if not isinstance(found, dict) and isinstance(inner, dict):
            found = inner.get("usage")
    return _usage(found)


def _usage(found: Any) -> TokenUsage | None:
    if not isinstance(found, dict):
        return None
    prompt = _count(found["prompt_tokens"] if "prompt_tokens" in found else found.get("input_tokens"))
    if prompt is not None and "input_tokens" in found:
        # Anthropic's API counts the cached part of a prompt apart.
        prompt += sum(_count(found.get(f"cache_{kind}_input_tokens")) or 0 for kind in ("creation", "read"))
    completion = _count(found["completion_tokens"] if "completion_tokens" in found else found.get("output_tokens"))
    return TokenUsage(prompt, completion) if prompt is not None or completion is not None else None


def _merged(previous: TokenUsage | None, new: TokenUsage) -> TokenUsage:
    """Return `new`, completed by `previous`: some APIs report input at the start and output at the end."""
    if previous is None:
        return new
    return TokenUsage(
        new.prompt if new.prompt is not None else previous.prompt,
        new.completion if new.completion is not None else previous.completion,
    )


def _json(text: bytes) -> Any:
    try:
        return from_json(text)
    except ValueError:
        pass
    try:
        return _DECODER.decode(text.decode())  # slower, but accepts lone surrogates
    except (ValueError, RecursionError):
        return None


def _data(event: bytes) -> bytes:
    # JSON ignores the space that may follow the colon.
    return b"\n".join([line[5:] for line in _LINE_END.split(event) if line.startswith(b"data:")])


class EventReader:
    """A reader of server-sent events, split anywhere. With `withhold`, the usage-only event is not sent downstream.

    Without `withhold` every byte passes at once and a copy is read. With it, at most one unfinished event is held until
    it ends; all bytes except the usage-only event pass unchanged and in order.
    """

    def __init__(self, *, withhold: bool) -> None:
        self._withhold = withhold
        self._held = b""
        self._skipping = False
        self._usage: TokenUsage | None = None
        self.events = 0
        self.failed = False

    @property
    def usage(self) -> TokenUsage | None:
        """Return the last reported usage."""
        return self._usage

    def feed(self, data: bytes) -> bytes:
        """Read a chunk. Return the bytes to send downstream now."""
        self.events += data.count(b"\n\n") or data.count(b"\r\n\r\n")
        if (
            not self._held
            and not self._skipping
            and _MARK not in data
            and _ERROR_MARK not in data
            and data.endswith(b"\n\n")
        ):
            return data  # whole events without usage or error: nearly every call
        passed = self._read(data)
        return passed if self._withhold else data

    def finish(self) -> bytes:
        """End the body. Return the held bytes; an unfinished last event counts as an event."""
        held, self._held = self._held, b""
        passed = b"" if self._is_usage_only(held) else held
        return passed if self._withhold else b""

    def _read(self, data: bytes) -> bytes:
        text = self._held + data if self._held else data
        # The end of an event, two to four bytes, may itself be split: search the last held bytes again.
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
            # The last bytes are held, so that an end split over two chunks is still found.
            self._skipping = True
            out.append(rest[:-3])
            rest = rest[-3:]
        self._held = rest
        return b"".join(out)

    def _is_usage_only(self, event: bytes) -> bool:
        if _ERROR_MARK in event and not self.failed:
            document = _json(_data(event))
            self.failed = isinstance(document, dict) and bool(document.get("error"))
        if _MARK not in event:
            return False
        document = _json(_data(event))
        found = usage_of(document)
        if found is None:
            return False
        self._usage = _merged(self._usage, found)
        return isinstance(document, dict) and document.get("choices") == []


class JsonReader:
    """A reader of one JSON response: of a small one whole, of a large one the end. Bytes pass unchanged."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._large = False
        self._usage: TokenUsage | None = None
        self.events = 0
        self.failed = False

    @property
    def usage(self) -> TokenUsage | None:
        """Return the usage, known after `finish`."""
        return self._usage

    def feed(self, data: bytes) -> bytes:
        """Read a chunk. Return it unchanged."""
        self._parts.append(data)
        self._size += len(data)
        if self._size > (TAIL_BYTES * 4 if self._large else WHOLE_PARSE_BYTES):
            self._large = True
            tail = b"".join(self._parts)[-TAIL_BYTES:]
            self._parts, self._size = [tail], len(tail)
        return data

    def finish(self) -> bytes:
        """Read the usage. Return nothing more to send."""
        text = b"".join(self._parts)
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


class NullReader:
    """A reader for responses without usage (audio, images, errors): bytes pass unread."""

    events = 0
    usage: TokenUsage | None = None
    failed = False

    def feed(self, data: bytes) -> bytes:
        """Read a chunk. Return it unchanged."""
        return data

    def finish(self) -> bytes:
        """Return nothing more to send."""
        return b""


def _leading_json(text: bytes) -> Any:
    try:
        value, _ = _DECODER.raw_decode(text.decode(errors="replace").lstrip())
    except (ValueError, RecursionError):
        return None
    return value


def reader_for(status: int, kind: bytes, *, compressed: bool, withhold: bool) -> UsageReader:
    """Return the reader for a response of content type `kind`; errors, compressed and binary ones are not read."""
    if not 200 <= status < 300 or compressed:
        return NullReader()
    if kind[:17].lower() == b"text/event-stream":
        return EventReader(withhold=withhold)
    return JsonReader() if b"json" in kind else NullReader()
