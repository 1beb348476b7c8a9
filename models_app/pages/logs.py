"""The end of an engine's log, for the page of its model."""

from dataclasses import dataclass

from agent.wire.instances import LogSlice
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.redact import redact
from models_app import queries
from models_app.models import ModelDefinition
from nodes import queries as node_queries
from nodes.link import client

LOG_TAIL = 300


@dataclass(frozen=True, slots=True)
class Log:
    """The last lines of an engine, or why they cannot be shown."""

    lines: tuple[str, ...]
    problem: str
    truncated: bool


def log(model: ModelDefinition, node_id: str = "") -> Log:
    """Asks the agent for the end of the engine's log on `node_id`, of the primary when it is empty.

    Never raises for a node that is away.
    """
    placements = queries.placements_of(model)
    placement = next((one for one in placements if node_id in ("", one.node_id_text)), None)
    if placement is None or not placement.observed_view:
        return Log((), "Nothing has run here yet. The log begins with the first start.", truncated=False)
    try:
        # A node that is known to be away is not waited for.
        node_queries.require_serving(placement.node_id_text)
        path = f"instances/{placement.pk}/log?tail={LOG_TAIL}"
        found = client.call(placement.node_id_text, "GET", path, answer=LogSlice, timeout_seconds=4.0)
    except MirbadError as error:
        return Log((), error.detail, truncated=False)
    return Log(tuple(redact(line) for line in found.lines), "", found.truncated)
