"""Logging of the master's processes: one rotated JSON-lines file per process, a readable console, secrets removed."""

import logging
import logging.handlers
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

from agent.common.redaction import redact
from mirbad.kernel import files
from mirbad.kernel.conf import settings

_FILE_BYTES = 16 * 1024 * 1024
_FILES_KEPT = 5


class _RedactingFormatter(structlog.stdlib.ProcessorFormatter):
    """Renders a record, then redacts the finished line: tracebacks and arguments included."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class _ExpectedErrorFilter(logging.Filter):
    """A log filter for refused requests and a broker that is away or slow: a traceback of them helps nobody."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        # Here, because the supervisor logs, too, and must not load Django.
        from django.core.exceptions import DisallowedHost, PermissionDenied, SuspiciousOperation

        if isinstance(error, DisallowedHost):
            _shorten(record, lambda text: text.replace("ALLOWED_HOSTS", "MIRBAD_HOSTS"))
        elif isinstance(error, PermissionDenied | SuspiciousOperation):
            _shorten(record, str)
        elif type(error).__module__.partition(".")[0] in _BROKER:
            why = " ".join(str(error).split()) or type(error).__name__
            _shorten(record, lambda text: f"{text.rstrip()} (the broker: {why})")
        return True


_BROKER = frozenset({"redis", "kombu"})


def _shorten(record: logging.LogRecord, word: Callable[[str], str]) -> None:
    record.exc_info = record.exc_text = None
    record.levelno, record.levelname = logging.WARNING, "WARNING"
    said: Any = record.msg
    if isinstance(said, dict):  # of structlog, whose formatter reads everything from here
        rest = {name: value for name, value in said.items() if name != "exc_info"}
        record.msg = {**rest, "event": word(str(said.get("event", ""))), "level": "warning"}
    else:
        record.msg, record.args = word(record.getMessage()), ()


def _shared() -> list[Any]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # the number by which the guides name a line of code that master and agent share
        structlog.stdlib.ExtraAdder(["id"]),
    ]


def _drop_color_message(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    # uvicorn logs each line twice, once with colours
    event.pop("color_message", None)
    return event


def _console() -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    # Never the default formatter of exceptions: it prints local variables, and with them secrets.
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    handler.setFormatter(_formatter(renderer))
    return handler


def _file(path: Path) -> logging.Handler:
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_FILE_BYTES, backupCount=_FILES_KEPT, delay=True)
    handler.setFormatter(_formatter(structlog.processors.format_exc_info, structlog.processors.JSONRenderer()))
    return handler


def _formatter(*last: Any) -> logging.Formatter:
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    *before, renderer = last
    return _RedactingFormatter(
        foreign_pre_chain=_shared(), processors=[_drop_color_message, *before, remove_meta, renderer]
    )


def configure(process: str, *, console: bool = True) -> None:
    """Log to ``MIRBAD_DATA/logs/<process>.log`` (rotated) and, with `console`, as text to standard error.

    Every process of the master calls this first, so its files are private from here on.
    """
    files.keep_private()
    level = settings().log_level.upper()
    structlog.configure(
        processors=[*_shared(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handlers: list[logging.Handler] = [_console()] if console else [logging.NullHandler()]
    if settings().logs_dir.is_dir():
        handlers.append(_file(settings().logs_dir / f"{process}.log"))
    for handler in handlers:
        handler.addFilter(_ExpectedErrorFilter())
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(True)
    for noisy in ("asyncio", "aiohttp.access", "urllib3", "docker", "celery.app.trace", "kombu"):
        logging.getLogger(noisy).setLevel(max(logging.getLevelName(level), logging.WARNING))
