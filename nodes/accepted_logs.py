"""Decisions that nodes take the present audit log in place of the one that they saw, as after a restore.

A decision is an audit line of an owner for each node: it names the head that the node leaves. Nothing else is stored;
`nodes.witnesses` finds the line at its next round and shows it to the node, with the proof that it is in the log.
"""

from collections.abc import Collection, Iterable

from django.db import transaction

from agent.wire.capability import Feature
from agent.wire.witness import ACCEPTING, AuditHead, BreakRequest, WitnessView
from audit import chain, checkpoints
from audit import log as audit_log
from audit.models import AuditLine, Checkpoint
from audit.queries import document
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound
from mirbad.live import invalidations
from mirbad.tasking.tasks import TaskSignal, enqueue_on_commit
from nodes import fencing
from nodes.errors import ConfirmationRequired
from nodes.models import NodeWitness
from nodes.states import APPROVED

PHRASE = "this audit log counts"
LONGEST_REASON = 300
WITNESS_NOW = TaskSignal("nodes.witness-now")


def conflicts() -> list[NodeWitness]:
    """Return the approved nodes that hold another log, or refused one before. One statement."""
    rows = NodeWitness.objects.filter(node__lifecycle=APPROVED).select_related("node").order_by("node")
    return [row for row in rows if left_by(row) is not None]


def left_by(row: NodeWitness) -> AuditHead | None:
    """Return the head that a node in conflict would leave: the one that it holds, or one that it refused before."""
    view = WitnessView.model_validate(row.view)
    return view.refused if row.agrees else view.held


def can_take(row: NodeWitness) -> bool:
    """Return whether the agent of the node is new enough to take another log."""
    return Feature.AUDIT_BREAKS in row.node.capabilities.get("features", ())


def accept(reason: str, confirm: str, actor: Actor, node_ids: Collection[str] = ()) -> list[str]:
    """Decide that nodes in conflict, or those of `node_ids`, take the present log. Return their ids.

    Raises ConfirmationRequired (`confirm` is not `PHRASE`), InvalidRequest (no reason), MasterFenced, Conflict (a node
    is in no conflict, or its agent is too old).
    """
    with audit_log.refusals_recorded(ACCEPTING, actor), transaction.atomic():
        fencing.require_unfenced()
        if confirm.strip() != PHRASE:
            raise ConfirmationRequired(f"Type “{PHRASE}” to confirm.")
        reason = " ".join(reason.split())
        if not 0 < len(reason) <= LONGEST_REASON:
            raise InvalidRequest(f"Say in at most {LONGEST_REASON} characters why the present log counts.")
        rows = _chosen(node_ids)
        newest = checkpoints.latest()
        if newest is None:
            raise Conflict("No head of the audit log is signed yet. The first one is within five minutes.")
        for row in rows:
            _record(row, checkpoints.head_of(newest), reason, actor)
        enqueue_on_commit(WITNESS_NOW, "audit")
        transaction.on_commit(lambda: invalidations.changed("nodes"), robust=True)
    return [row.node_id for row in rows]


def request_for(node_id: str, view: WitnessView, checkpoint: Checkpoint) -> tuple[AuditLine, BreakRequest] | None:
    """Return the newest decision about the heads in `view`, and the message for the node; None without one."""
    names = [head.name for head in (view.held, view.refused) if head is not None]
    lines = AuditLine.objects.filter(action=ACCEPTING, result="accepted", node_id_text=node_id, target__in=names)
    line = lines.filter(seq__lte=checkpoint.size).order_by("-seq").first()
    if line is None:
        return None
    try:
        proof = checkpoints.proof_under(line, checkpoint)
    except NotFound:
        return None
    head = checkpoints.head_of(checkpoint)
    return line, BreakRequest(head=head, line=chain.canonical(document(line)), proof=proof)


def record_taken(line: AuditLine, view: WitnessView) -> None:
    """Record that the node of a decision took the log, under the name of the person who decided."""
    held = view.held.name if view.held else "nothing"
    audit_log.record(
        ACCEPTING,
        Actor(line.actor, line.person, line.role, line.address),
        node_id=line.node_id_text,
        target=line.target,
        detail=f"The node holds {held}, and keeps the head that it left with line {line.seq}.",
    )


def _chosen(node_ids: Collection[str]) -> list[NodeWitness]:
    found = conflicts()
    if node_ids:
        missing = set(node_ids) - {row.node_id for row in found}
        if missing:
            raise Conflict(f"These nodes are in no conflict with the log: {_listed(missing)}. Reload and check.")
        found = [row for row in found if row.node_id in node_ids]
    able = [row for row in found if can_take(row)]
    if not found:
        raise Conflict("No node is in conflict with the log.")
    if not able or (node_ids and len(able) < len(found)):
        old = _listed({row.node_id for row in found} - {row.node_id for row in able})
        raise Conflict(f"The agents of these nodes are too old to take another log: {old}. Update them first.")
    return able


def _listed(node_ids: Iterable[str]) -> str:
    return ", ".join(sorted(node_ids))


def _record(row: NodeWitness, head: AuditHead, reason: str, actor: Actor) -> None:
    left = left_by(row)
    assert left is not None  # noqa: S101 - `conflicts` has no other
    audit_log.record(
        ACCEPTING,
        actor,
        node_id=row.node_id,
        target=left.name,
        result="accepted",
        detail=f"From {left.time}. Instead: {head.name}, from {head.time}, or what continues it. Reason: {reason}",
    )
