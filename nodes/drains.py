"""Nodes learn whether they are drained, so that their agents let go of GPUs that no model uses."""

import structlog

from agent.wire.drain import DrainState
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.ids import new_operation_id
from nodes import fencing
from nodes.link import client, pools
from nodes.models import Node

log = structlog.get_logger(__name__)


def tell_once() -> int:
    """Send its state to each serving node whose last report has another one. Return how many took it.

    An agent that does not report the state is older and is not called. A fenced master calls no node.
    """
    if fencing.is_fenced():
        return 0
    return sum(pools.together([_tell(node_id, draining=draining) for node_id, draining in due()]))


def due() -> list[tuple[str, bool]]:
    """Return the serving nodes that have to be called, with the state to send. One statement."""
    rows = Node.objects.serving().order_by("pk").values_list("pk", "draining", "host")
    return [(pk, draining) for pk, draining, host in rows if host.get("draining") not in (None, draining)]


async def _tell(node_id: str, *, draining: bool) -> bool:
    state = DrainState(draining=draining)
    try:
        await client.acall(node_id, "PUT", "drain", state, answer=DrainState, operation_id=new_operation_id())
    except MirbadError as error:
        log.info("a node was not told of its drain", node=node_id, draining=draining, reason=error.detail)
        return False
    return True
