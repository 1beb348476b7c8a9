"""The agent's journal of operations: what a mutating call led to, kept for a repeat of the same call."""

from typing import Any, Literal

from agent.wire.base import WireModel
from agent.wire.errors import Refusal


class OperationView(WireModel):
    """``GET /agent/v1/operations/{operationId}``. A repeat of a finished call gets the stored answer."""

    operation_id: str
    route: str
    state: Literal["running", "succeeded", "refused"]
    started_at: str
    finished_at: str | None = None
    answer: dict[str, Any] | None = None
    refusal: Refusal | None = None
