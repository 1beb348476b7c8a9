"""Logging of the master's processes: one rotated JSON-lines file a process, a readable console, secrets taken out."""

import logging
import logging.handlers
import sys
from collections.abc import Callable
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

from mirbad.kernel.conf import settings
from mirbad.kernel.redact import redact

_FILE_BYTES = 16 * 1024 * 1024
_FILES_KEPT = 5


class _RedactingFormatter(structlog.stdlib.ProcessorFormatter):
    """Renders a record, then takes secrets out of the finished line: tracebacks and arguments included."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


class _WhatNeedsNoTraceback(logging.Filter):
    """A request that was refused, and a broker that is away or too slow: where in the code it was met helps nobody."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        # Here, because the supervisor logs too and is to stay without Django.
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
    if isinstance(said, dict):  # of structlog, whose formatter reads all from here
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
    ]


def _drop_color_message(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    # uvicorn logs its lines twice, once with colours
    event.pop("color_message", None)
    return event


def configure(process: str, *, console: bool = True) -> None:
    """Log to ``MIRBAD_DATA/logs/<process>.log`` (rotated) and, with `console`, in words to standard error."""
    level = settings().log_level.upper()
    structlog.configure(
        processors=[*_shared(), structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(
        _RedactingFormatter(
            foreign_pre_chain=_shared(),
            processors=[
                _drop_color_message,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                # Never the default: it prints local variables, and with them secrets.
                structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
            ],
        )
    )
    handlers: list[logging.Handler] = [stream] if console else [logging.NullHandler()]
    directory = settings().logs_dir
    if directory.is_dir():
        file = logging.handlers.RotatingFileHandler(
            directory / f"{process}.log", maxBytes=_FILE_BYTES, backupCount=_FILES_KEPT, delay=True
        )
        file.setFormatter(
            _RedactingFormatter(
                foreign_pre_chain=_shared(),
                processors=[
                    _drop_color_message,
                    structlog.processors.format_exc_info,
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.JSONRenderer(),
                ],
            )
        )
        handlers.append(file)
    for handler in handlers:
        handler.addFilter(_WhatNeedsNoTraceback())
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(True)
    for noisy in ("asyncio", "aiohttp.access", "urllib3", "docker", "celery.app.trace", "kombu"):
        logging.getLogger(noisy).setLevel(max(logging.getLevelName(level), logging.WARNING))
