"""Logging of the agent: readable lines on a terminal, JSON lines elsewhere, secrets masked in both."""

import json
import logging
import sys
from typing import TextIO

from agent.clock import now_text
from agent.common.redaction import redact


def number_of(record: logging.LogRecord) -> int | None:
    """Return the number by which the guides name a line (``extra={"id": 2640}``), None for most lines."""
    number = getattr(record, "id", None)
    return number if isinstance(number, int) else None


class ReadableFormatter(logging.Formatter):
    """A line such as ``12:00:00 WARNING agent.fence: …``, with ``[2640]`` before the message of a numbered one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the library's name
        """Return the line without its traceback."""
        number = number_of(record)
        if number is not None:
            record.message = f"[{number}] {record.message}"
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the finished line, with traceback and arguments, without secrets."""
        return redact(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and ``id`` and traceback if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the finished line, without secrets."""
        value: dict[str, str | int] = {
            "time": now_text(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        if (number := number_of(record)) is not None:
            value["id"] = number
        if record.exc_info:
            value["traceback"] = redact(self.formatException(record.exc_info))
        return json.dumps(value, ensure_ascii=False)


def configure(level: str, stream: TextIO | None = None, *, for_a_person: bool = False) -> None:
    """Log to `stream` (standard error) from `level` on. Raises ValueError for an unknown level."""
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    handler.setFormatter(ReadableFormatter() if for_a_person or target.isatty() else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for noisy in ("asyncio", "aiohttp.access", "urllib3", "docker"):
        logging.getLogger(noisy).setLevel(max(root.level, logging.WARNING))
