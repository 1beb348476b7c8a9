"""The access log of `/v1`: one JSON line a request, written for many at once. No secret, no prompt, no address."""

import json
import logging
import logging.handlers
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from mirbad.kernel.redact import redact

FILE_BYTES = 16 * 1024 * 1024
FILES_KEPT = 5


class Line(NamedTuple):
    """One request as the log tells it; times in seconds, None is not known."""

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
    """A rotated file; `write` blocks and is called from one thread."""

    def __init__(self, path: Path) -> None:
        self._handler = logging.handlers.RotatingFileHandler(
            path, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, delay=True
        )
        self._handler.setFormatter(logging.Formatter("%(message)s"))

    def write(self, lines: Sequence[Line]) -> None:
        """Append the lines."""
        for line in lines:
            # A path is the client's own text: it may hold what it should not.
            text = redact(render(line))
            self._handler.handle(logging.makeLogRecord({"msg": text}))

    def close(self) -> None:
        """Close the file."""
        self._handler.close()


def render(line: Line) -> str:
    """The line as JSON."""
    values = line._asdict()
    values["time"] = datetime.fromtimestamp(values.pop("ended"), UTC).isoformat(timespec="milliseconds")
    for name in ("seconds", "first_byte_seconds", "own_seconds"):
        if values[name] is not None:
            values[name] = round(values[name], 6)
    return json.dumps({"time": values.pop("time"), **values}, ensure_ascii=False)
