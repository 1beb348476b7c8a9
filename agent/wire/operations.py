"""The agent's journal: the results of mutating calls, kept for repeats of the same call."""

from typing import Any, Literal

from agent.wire.base import WireModel
from agent.wire.errors import AgentErrorBody


class OperationView(WireModel):
    """``GET /agent/v1/operations/{operationId}``. A repeat of a finished call receives the stored response."""

    operation_id: str
    route: str
    state: Literal["running", "succeeded", "refused"]
    started_at: str
    finished_at: str | None = None
    answer: dict[str, Any] | None = None
    refusal: AgentErrorBody | None = None
