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


def read(model_id: str, tail: int, after: int | None) -> LogSlice:
    """At most `tail` lines, from position `after` on when it is given. Secrets are taken out.

    Raises NotFound (no such model, or nothing was ever started), Conflict (unplaced), NodeOffline, AgentRefused.
    """
    placement = queries.placement_of(queries.one_model(model_id))
    if placement is None:
        raise Conflict(f"Model {model_id!r} stands on no node, so there is no log.")
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
