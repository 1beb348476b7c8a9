"""Logging of the agent: readable lines on a terminal, JSON lines elsewhere, secrets taken out of both."""

import json
import logging
import re
import sys
from typing import TextIO

from agent.clock import now_text

_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL), "***"),
    (re.compile(r"\b(?:ssk_|hf_|mbt_)[A-Za-z0-9_\-]{4,}"), "***"),
    (
        re.compile(
            r"""(?ix)\b((?:[a-z0-9]+[_\-])*(?:password|passphrase|token|secret|api[_\-]?key)["']?\s*[=:]\s*)"""
            r"""("[^"]*"|'[^']*'|[^\s,;&"']+)"""
        ),
        r"\1***",
    ),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=\-]{8,}"), r"\1***"),
    # A long run of base64url is a secret until shown otherwise; hex digests are not.
    (re.compile(r"(?<![\w\-])(?![0-9a-f]+(?![\w\-]))[A-Za-z0-9_\-]{40,}(?![\w\-])"), "***"),
)


def without_secrets(text: str) -> str:
    """`text` with keys, tokens, passwords and long base64url runs replaced by ``***``."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


class ReadableFormatter(logging.Formatter):
    """A line such as ``12:00:00 WARNING agent.fence: …``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The finished line, traceback and arguments included, without secrets."""
        return without_secrets(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the traceback when there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The finished line, without secrets."""
        value = {
            "time": now_text(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
        }
        if record.exc_info:
            value["traceback"] = without_secrets(self.formatException(record.exc_info))
        return json.dumps(value, ensure_ascii=False)


def configure(level: str, stream: TextIO | None = None, *, for_a_person: bool = False) -> None:
    """Log to `stream` (the standard error) from `level` on. ValueError for a level that is none."""
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    handler.setFormatter(ReadableFormatter() if for_a_person or target.isatty() else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for noisy in ("asyncio", "aiohttp.access", "urllib3", "docker"):
        logging.getLogger(noisy).setLevel(max(root.level, logging.WARNING))
