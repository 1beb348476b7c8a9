"""Errors of the agent: codes, their HTTP status, and the body that carries them."""

from enum import StrEnum
from typing import Any

from agent.wire.base import WireModel


class AgentCode(StrEnum):
    """Reasons of a refusal. The value is part of the protocol."""

    INVALID_REQUEST = "invalid_request"
    NOT_FOUND = "not_found"
    STALE_MASTER = "stale_master"
    COMPETING_MASTER = "competing_master"
    NOT_APPROVED = "not_approved"
    INSTANCE_EXISTS = "instance_exists"
    GENERATION_MISMATCH = "generation_mismatch"
    NOT_READY = "not_ready"
    NOT_STAGED = "not_staged"
    SPEC_REJECTED = "spec_rejected"
    RUNTIME_UNAVAILABLE = "runtime_unavailable"
    SOURCE_MISSING = "source_missing"
    MODELS_ROOT_CHANGED = "models_root_changed"
    PORT_UNAVAILABLE = "port_unavailable"
    START_CONFLICT = "start_conflict"
    ADMISSION_REFUSED = "admission_refused"
    GPU_MISSING = "gpu_missing"
    DELIVERY_FAILED = "delivery_failed"
    ENGINE_UNREACHABLE = "engine_unreachable"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    AUDIT_HEAD_REFUSED = "audit_head_refused"
    INTERNAL = "internal"


HTTP_STATUS: dict[AgentCode, int] = {
    AgentCode.INVALID_REQUEST: 400,
    AgentCode.NOT_FOUND: 404,
    AgentCode.STALE_MASTER: 409,
    AgentCode.COMPETING_MASTER: 409,
    AgentCode.NOT_APPROVED: 403,
    AgentCode.INSTANCE_EXISTS: 409,
    AgentCode.GENERATION_MISMATCH: 409,
    AgentCode.NOT_READY: 503,
    AgentCode.NOT_STAGED: 409,
    AgentCode.SPEC_REJECTED: 422,
    AgentCode.RUNTIME_UNAVAILABLE: 422,
    AgentCode.SOURCE_MISSING: 422,
    AgentCode.MODELS_ROOT_CHANGED: 409,
    AgentCode.PORT_UNAVAILABLE: 409,
    AgentCode.START_CONFLICT: 409,
    AgentCode.ADMISSION_REFUSED: 409,
    AgentCode.GPU_MISSING: 422,
    AgentCode.DELIVERY_FAILED: 502,
    AgentCode.ENGINE_UNREACHABLE: 502,
    AgentCode.PAYLOAD_TOO_LARGE: 413,
    AgentCode.AUDIT_HEAD_REFUSED: 409,
    AgentCode.INTERNAL: 500,
}
"""The status of each code. A 4xx stays until something changes; a 5xx may be retried."""


class AgentErrorBody(WireModel):
    """The body of every response of a control route that is not 2xx."""

    code: AgentCode
    detail: str
    fields: dict[str, Any] = {}
