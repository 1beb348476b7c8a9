"""The tail of an engine's log, read from its node."""

from agent.common.redaction import redact
from agent.wire.errors import AgentCode
from agent.wire.instances import LogSlice
from mirbad.kernel.errors import Conflict, NotFound
from models_app import queries
from nodes.errors import AgentRefused
from nodes.link import client

MAX_LINES = 2000
EARLIER_RUNS = 2
_TIMEOUT_SECONDS = 5.0


def read(model_id: str, tail: int, after: int | None, *, node_id: str = "", run: int = 0) -> LogSlice:
    """Return at most `tail` lines, from position `after` on if given, redacted.

    `node_id` names the placement, empty the primary's; `run` 1 is the run before the present one. Raises NotFound (no
    such model or placement, or it was never started), Conflict (unplaced), NodeOffline, AgentRefused.
    """
    placements = queries.placements_of(queries.one_model(model_id))
    if not placements:
        raise Conflict(f"Model {model_id!r} is not placed, so there is no log.")
    placement = next((one for one in placements if node_id in ("", one.node_id_text)), None)
    if placement is None:
        raise NotFound(f"Model {model_id!r} is not placed on node {node_id!r}.")
    path = f"instances/{placement.pk}/log?tail={tail}&run={run}"
    if after is not None:
        path += f"&after={after}"
    try:
        found = client.call(placement.node_id_text, "GET", path, answer=LogSlice, timeout_seconds=_TIMEOUT_SECONDS)
    except AgentRefused as error:
        if error.agent_code == AgentCode.NOT_FOUND:
            raise NotFound(f"Model {model_id!r} was never started on its node, so there is no log.") from error
        raise
    return found.model_copy(update={"lines": tuple(redact(line) for line in found.lines)})
