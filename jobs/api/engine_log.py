"""The tail of an engine's log, read from its node."""

from agent.wire.errors import AgentCode
from agent.wire.instances import LogSlice
from mirbad.kernel.errors import Conflict, NotFound
from mirbad.kernel.redact import redact
from models_app import queries
from nodes.errors import AgentRefused
from nodes.link import client

MAX_LINES = 2000
_TIMEOUT_SECONDS = 5.0


def read(model_id: str, tail: int, after: int | None, *, node_id: str = "") -> LogSlice:
    """At most `tail` lines, from position `after` on when it is given. Secrets are taken out.

    `node_id` says which placement's, empty the primary's. Raises NotFound (no such model or placement, or nothing was
    ever started), Conflict (unplaced), NodeOffline, AgentRefused.
    """
    placements = queries.placements_of(queries.one_model(model_id))
    if not placements:
        raise Conflict(f"Model {model_id!r} stands on no node, so there is no log.")
    placement = next((one for one in placements if node_id in ("", one.node_id_text)), None)
    if placement is None:
        raise NotFound(f"Model {model_id!r} does not stand on node {node_id!r}.")
    path = f"instances/{placement.pk}/log?tail={tail}"
    if after is not None:
        path += f"&after={after}"
    try:
        found = client.call(placement.node_id_text, "GET", path, answer=LogSlice, timeout_seconds=_TIMEOUT_SECONDS)
    except AgentRefused as error:
        if error.agent_code == AgentCode.NOT_FOUND:
            raise NotFound(f"Model {model_id!r} was not started on its node yet, so there is no log.") from error
        raise
    return found.model_copy(update={"lines": tuple(redact(line) for line in found.lines)})
