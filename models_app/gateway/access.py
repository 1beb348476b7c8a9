"""The access log of `/v1`: one JSON line per request, written in batches. No secret, no prompt, no address."""

import json
import logging
import logging.handlers
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from agent.common.redaction import redact

FILE_BYTES = 16 * 1024 * 1024
FILES_KEPT = 5
_LINES_AT_ONCE = 1000
# Our own ids and UUIDs. Any other id comes from a client and may contain a secret, so it is redacted.
_PLAIN_ID = re.compile(r"req-[0-9a-f]{24}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class AccessLogLine(NamedTuple):
    """One logged request. Times are in seconds; None means unknown."""

    ended: float
    request_id: str
    trace_id: str
    key_id: int | None
    method: str
    path: str
    model: str
    node: str
    status: int
    outcome: str
    seconds: float
    first_byte_seconds: float | None
    own_seconds: float
    prompt_tokens: int | None
    completion_tokens: int | None


class AccessLog:
    """The log file with its rotation. `write` blocks and may be called from one thread only."""

    def __init__(self, path: Path) -> None:
        self._handler = logging.handlers.RotatingFileHandler(
            path, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, delay=True
        )
        self._handler.setFormatter(logging.Formatter("%(message)s"))

    def write(self, lines: Sequence[AccessLogLine]) -> None:
        """Append the lines."""
        for start in range(0, len(lines), _LINES_AT_ONCE):
            text = "\n".join([render(line) for line in lines[start : start + _LINES_AT_ONCE]])
            self._handler.handle(logging.makeLogRecord({"msg": text}))

    def close(self) -> None:
        """Close the file."""
        self._handler.close()


def render(line: AccessLogLine) -> str:
    """Return `line` as JSON. Formatted by hand: `json` would take longer than the rest of the request."""
    second = int(line.ended)
    request_id = line.request_id if _PLAIN_ID.fullmatch(line.request_id) else redact(line.request_id)
    return (
        f'{{"time": "{_second(second)}.{int((line.ended - second) * 1000):03d}+00:00", "request_id": "{request_id}", '
        f'"trace_id": "{line.trace_id}", "key_id": {_number(line.key_id)}, "method": {_text(line.method)}, '
        f'"path": {_text(line.path)}, "model": {_text(line.model)}, "node": {_text(line.node)}, '
        f'"status": {line.status}, "outcome": {_text(line.outcome)}, "seconds": {line.seconds:.6f}, '
        f'"first_byte_seconds": {_seconds(line.first_byte_seconds)}, "own_seconds": {line.own_seconds:.6f}, '
        f'"prompt_tokens": {_number(line.prompt_tokens)}, "completion_tokens": {_number(line.completion_tokens)}}}'
    )


@lru_cache(maxsize=4)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@lru_cache(maxsize=1024)
def _text(text: str) -> str:
    # The path is text of the client and may contain a secret.
    return json.dumps(redact(text), ensure_ascii=False)


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


def _seconds(value: float | None) -> str:
    return "null" if value is None else f"{value:.6f}"
