"""The nodes as witnesses of the audit log: each signs the newest head, when it continues the one that it saw last."""

import structlog
from django.db import transaction

from agent.common.keys import verifies
from agent.wire.capability import Feature
from agent.wire.errors import AgentCode
from agent.wire.witness import WITNESS_LINE, BreakRequest, WitnessRequest, WitnessView
from audit import checkpoints
from audit import log as audit_log
from audit.models import AuditLine, Checkpoint
from mirbad.kernel import clock
from mirbad.kernel.actor import system
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.ids import new_operation_id
from nodes import accepted_logs, conditions, fencing
from nodes.conditions import Condition
from nodes.errors import AgentRefused
from nodes.link import client, pools
from nodes.models import Node, NodeWitness

log = structlog.get_logger(__name__)

_SOURCE = "audit"
_ACTOR = system("audit")
_REMEDY = "Compare backups. If the reason is known, such as a restore, an owner accepts the log on the audit page."


def collect_once() -> int:
    """Sign the head of the audit log, and have the serving nodes witness it. Return how many did.

    A fenced master signs, and calls no node.
    """
    checkpoint = checkpoints.sign_once()
    if checkpoint is None or fencing.is_fenced():
        return 0
    due = [node_id for node_id in witnesses() if node_id not in checkpoint.witnesses]
    return sum(pools.together([_witness(node_id, checkpoint) for node_id in due]))


def witnesses() -> list[str]:
    """Return the serving nodes whose agents can be witnesses. One statement."""
    rows = Node.objects.serving().order_by("pk").values_list("pk", "capabilities")
    return [pk for pk, capabilities in rows if Feature.AUDIT_WITNESS in capabilities.get("features", ())]


def views() -> tuple[dict[str, WitnessView], list[str]]:
    """Return the witnesses' views by node id, and the nodes that were not asked or did not answer."""
    asked = witnesses()
    answers = zip(asked, pools.together([_ask(node_id) for node_id in asked]), strict=True)
    found = {node_id: view for node_id, view in answers if view is not None}
    return found, sorted(set(Node.objects.approved().values_list("pk", flat=True)) - found.keys())


async def _ask(node_id: str) -> WitnessView | None:
    try:
        return await client.acall(node_id, "GET", "witness", answer=WitnessView)
    except MirbadError as error:
        log.info("a witness of the audit log did not answer", node=node_id, reason=error.detail)
        return None


async def _witness(node_id: str, checkpoint: Checkpoint) -> bool:
    view = await _ask(node_id)
    if view is None:
        return False
    head, size = checkpoints.head_of(checkpoint), view.held.size if view.held is not None else 0
    proof = await client.in_thread(lambda: checkpoints.consistency(size, checkpoint))
    decided = None
    if proof is None or view.refused is not None:
        decided = await client.in_thread(lambda: accepted_logs.request_for(node_id, view, checkpoint))
    if decided is None and proof is None:
        text = f"The node last saw the audit log at {size} lines, and lines for a proof since are gone by retention. "
        await _raise(node_id, "audit_head_too_old", text + _REMEDY, view)
        return False
    try:
        answer = await _send(node_id, decided[1] if decided else WitnessRequest(head=head, proof=tuple(proof or ())))
    except AgentRefused as error:
        if error.agent_code == AgentCode.AUDIT_HEAD_REFUSED:
            await _raise(node_id, "audit_head_refused", f"{error.detail} {_REMEDY}", await _ask(node_id) or view)
        return False
    except MirbadError:
        return False
    if answer.held != head or not verifies(answer.key, answer.signature or "", WITNESS_LINE + head.text()):
        await _raise(node_id, "audit_witness_invalid", "The node's signature of the audit log is not by its key.", view)
        return False
    await client.in_thread(lambda: _note(node_id, checkpoint, answer, decided[0] if decided else None))
    return True


async def _send(node_id: str, request: WitnessRequest | BreakRequest) -> WitnessView:
    path = "witness/break" if isinstance(request, BreakRequest) else "witness"
    return await client.acall(node_id, "PUT", path, request, answer=WitnessView, operation_id=new_operation_id())


@transaction.atomic
def _note(node_id: str, checkpoint: Checkpoint, view: WitnessView, decision: AuditLine | None) -> None:
    checkpoints.note_witness(checkpoint, node_id, view)
    _keep(node_id, view, agrees=True)
    left = []
    if view.refused is not None:
        text = f"The node refused a log of {view.refused.name}, which did not continue what it saw before. {_REMEDY}"
        left = [Condition("audit_head_refused", text)]
    conditions.replace(node_id, _SOURCE, left)
    if decision is not None:
        accepted_logs.record_taken(decision, view)


async def _raise(node_id: str, code: str, text: str, view: WitnessView) -> None:
    def write() -> None:
        agreed = _keep(node_id, view, agrees=False)
        conditions.replace(node_id, _SOURCE, [Condition(code, text)])
        # One line a conflict, not one a head: the line itself makes the next head.
        if agreed:
            log.critical("the audit log is not witnessed", node=node_id, code=code, reason=text)
            audit_log.record("audit", _ACTOR, node_id=node_id, result="failed", error_code=code, detail=text)

    await client.in_thread(write)


def _keep(node_id: str, view: WitnessView, *, agrees: bool) -> bool:
    """Store what the node answered. Return False when it was in conflict before."""
    agreed = not NodeWitness.objects.filter(node_id=node_id, agrees=False).exists()
    values = {"view": view.to_wire(), "agrees": agrees, "at": clock.now()}
    NodeWitness.objects.update_or_create(node_id=node_id, defaults=values)
    return agreed
