"""Request bodies of the control routes: bounded, strict JSON, validated as messages."""

from typing import Any, TypeVar

from aiohttp import web
from pydantic import ValidationError

from agent.common import strict_json
from agent.errors import AgentError
from agent.wire.base import JSON_BODY_LIMIT, WireModel
from agent.wire.errors import AgentCode

T = TypeVar("T", bound=WireModel)


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`. Raises AgentError INVALID_REQUEST for anything else."""
    try:
        return strict_json.parse_object(data)
    except strict_json.BadJson as error:
        raise AgentError(AgentCode.INVALID_REQUEST, str(error)) from None


async def read_bytes(request: web.Request, limit: int = JSON_BODY_LIMIT) -> bytes:
    """Return the whole body. Raises AgentError PAYLOAD_TOO_LARGE past `limit` bytes, without reading further."""
    declared = request.content_length
    chunks: list[bytes] = []
    size = 0
    if declared is None or declared <= limit:
        async for chunk in request.content.iter_any():
            size += len(chunk)
            if size > limit:
                break
            chunks.append(chunk)
        else:
            return b"".join(chunks)
    raise AgentError(AgentCode.PAYLOAD_TOO_LARGE, f"The body is larger than {limit} bytes.", {"limitBytes": limit})


def parse_message(model: type[T], value: dict[str, Any]) -> T:
    """Return `value` as a message. Raises AgentError INVALID_REQUEST that names each wrong field and no value."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = [
            {"field": ".".join(map(str, item["loc"])), "problem": item["msg"]}
            for item in error.errors(include_url=False, include_input=False, include_context=False)
        ]
        named = "; ".join(f"{item['field']}: {item['problem']}" for item in problems[:5])
        raise AgentError(
            AgentCode.INVALID_REQUEST, f"The body is not valid: {named}.", {"problems": problems}
        ) from None
