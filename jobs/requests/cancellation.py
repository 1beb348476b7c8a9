"""Cancellation of an open operation."""

from django.db import transaction

from audit import log as audit_log
from jobs import ledger
from jobs.kinds import CONTINUE_FENCED, launch, move, read, unplace
from jobs.models import Operation
from jobs.steps import shards
from mirbad.api.problems import Forbidden
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, NotFound
from mirbad.kernel.roles import Role, rank_of_role
from models_app.models import Placement
from models_app.placement import apply
from nodes import fencing

# The audit action of a cancellation, by kind; `job` for all others.
_ACTIONS = {launch.NAME: "model.stop", move.NAME: "model.move", unplace.NAME: "model.unplace"}


def request(operation_id: str, actor: Actor) -> Operation:
    """Cancel an operation. A launch stops its engine first.

    Raises NotFound, Conflict (over already, or at a stage from which there is no way back), MasterFenced, Forbidden.
    """
    operation = Operation.objects.filter(pk=operation_id).first()
    if operation is None:
        raise NotFound(f"Operation {operation_id!r} not found.")
    action = _ACTIONS.get(operation.kind, "job")
    with audit_log.refusals_recorded(action, actor, operation_id=operation_id), transaction.atomic():
        if operation.kind not in CONTINUE_FENCED:
            fencing.require_unfenced()
        operation = Operation.objects.select_for_update().get(pk=operation_id)
        if operation.finished_at is not None:
            raise Conflict("The operation has already ended.")
        known = read(operation)
        if known is not None:
            _require_role(actor, known[0].role)
        if known is not None and (why := known[0].why_no_cancel(known[1])):
            raise Conflict(why, fields={"stage": operation.stage})
        # The shards of a replica start together, or not at all.
        together = shards.operations_with(operation)
        if operation.kind == launch.NAME:
            for placement in Placement.objects.filter(pk__in=[one.target_id for one in together]).order_by("pk"):
                apply.set_desired_stopped(placement)
        for one in together:
            ledger.ask_to_cancel(one)
        audit_log.record(
            action,
            actor,
            node_id=operation.node_id_text,
            model_id=operation.model_id_text,
            operation_id=operation.pk,
            result="accepted",
        )
    operation.refresh_from_db()
    return operation


def _require_role(actor: Actor, role: Role) -> None:
    # Parts of the master and its configuration have no role.
    if actor.role and rank_of_role(actor.role) < rank_of_role(role):
        raise Forbidden(f"Only people with the role {role} may cancel this operation. Ask one of them.")
