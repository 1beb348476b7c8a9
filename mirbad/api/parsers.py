"""JSON bodies of ``/api``: strict, bounded, and refused with a sentence."""

from typing import Any

from rest_framework.exceptions import ParseError, UnsupportedMediaType
from rest_framework.parsers import BaseParser

from agent.common import strict_json
from mirbad.api.problems import PayloadTooLarge

MAX_BYTES = 1024 * 1024


class StrictJSONParser(BaseParser):
    """Parser of at most `MAX_BYTES` of strict JSON (`agent.common.strict_json`)."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        """Return the value of the body. Raises ParseError, PayloadTooLarge or UnsupportedMediaType."""
        _check_encoding((parser_context or {}).get("request"))
        data: bytes = stream.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise PayloadTooLarge(f"The body is larger than {MAX_BYTES} bytes.")
        return parse(data)


def _check_encoding(request: Any) -> None:
    """Raise UnsupportedMediaType (415) for a compressed body, which would be read as broken JSON."""
    value = request.headers.get("Content-Encoding", "") if request is not None else ""
    if not {name.strip() for name in value.lower().split(",")} <= {"identity", ""}:
        text = f"Content-Encoding {value[:50]!r} is not supported, only 'identity' is. Send the body uncompressed."
        raise UnsupportedMediaType(value, text)


def parse(data: bytes) -> Any:
    """Return `data` as a JSON value. Raises ParseError."""
    try:
        return strict_json.parse(data)
    except strict_json.BadJson as error:
        raise ParseError(str(error)) from None
