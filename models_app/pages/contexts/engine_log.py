"""The last lines of an engine's log, for the page of its model."""

from dataclasses import dataclass

from agent.common.redaction import redact
from agent.wire.instances import LogSlice
from mirbad.kernel.errors import MirbadError
from models_app import queries
from models_app.models import ModelDefinition
from nodes import queries as node_queries
from nodes.link import client

LOG_TAIL = 300


@dataclass(frozen=True, slots=True)
class EngineLog:
    """The last lines of an engine, or the reason for which they cannot be shown."""

    lines: tuple[str, ...]
    problem: str
    truncated: bool


def of_model(model: ModelDefinition, node_id: str = "", run: int = 0) -> EngineLog:
    """Read the last lines of the engine's log on `node_id`, or of the primary placement when it is empty.

    `run` 1 is the run before the present one, 2 the one before that. Never raises for an unreachable node.
    """
    placements = queries.placements_of(model)
    placement = next((one for one in placements if node_id in ("", one.node_id_text)), None)
    if placement is None or not placement.observed_view:
        return EngineLog((), "Never started here. The log begins with the first start.", truncated=False)
    try:
        # A node that is known to be offline is not called.
        node_queries.require_serving(placement.node_id_text)
        path = f"instances/{placement.pk}/log?tail={LOG_TAIL}&run={run}"
        found = client.call(placement.node_id_text, "GET", path, answer=LogSlice, timeout_seconds=4.0)
    except MirbadError as error:
        return EngineLog((), error.detail, truncated=False)
    return EngineLog(tuple(redact(line) for line in found.lines), "", found.truncated)
