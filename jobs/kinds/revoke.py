"""Revoke a node: stopping (each model stopped and taken off the node) → revoking → done.

The node takes no new work meanwhile, and does again when the revoke fails; models that were taken off it stay so. A
node that cannot be reached is revoked all the same: nothing can be asked of it, and its key stops working.
"""

from dataclasses import replace
from datetime import datetime

from django.db import transaction

from audit import log as audit_log
from jobs import instances, ledger
from jobs.base import Cancelled, Done, Go, Kind, Outcome, Step, Wait
from jobs.errors import StepFailed
from jobs.queries import open_operation
from jobs.states import CANCELLED, SUCCEEDED
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from models_app import holds, routing
from models_app.models import Placement
from models_app.placement import apply
from nodes import queries, registry
from nodes.errors import NodeRevoked
from nodes.models import Node
from nodes.states import REVOKED

NAME = "revoke"
STOPPING = "stopping"
REVOKING = "revoking"

_LOOK_SECONDS = 0.5


def _stopping(step: Step) -> Outcome:
    if step.cancel_requested:
        return Cancelled("Ended before the node was revoked; models that were taken off it stay so.")
    placement = _next(step)
    if placement is None:
        return Go(REVOKING, "No model stands on the node.")
    if not step.input.get("unplaceModels"):
        raise StepFailed("models_placed", f"Model {placement.model_id!r} stands on the node.", final=True)
    since = dict(step.state.get("since", {}))
    began = datetime.fromisoformat(since.setdefault(str(placement.pk), clock.now().isoformat()))
    late = clock.now() - began > settings().revoke_stop_timeout
    try:
        how = _stop(step, placement, late=late)
    except StepFailed as failure:
        if failure.final:
            raise
        return Wait(_LOOK_SECONDS, {"text": failure.detail}, {"since": since})
    if how is None:
        return Wait(_LOOK_SECONDS, {"text": f"Stopping {placement.model_id}."}, {"since": since})
    with transaction.atomic():
        apply.take_off(placement, Actor(step.actor), how)
        holds.release(placement.model_id, step.operation_id)
    taken = [*step.state.get("unplaced", []), placement.model_id]
    return Wait(0.0, {"text": f"{placement.model_id}: {how}"}, {"since": since, "unplaced": taken})


def _stop(step: Step, placement: Placement, *, late: bool) -> str | None:
    """What became of the model's engine, in words; None while it still ends. StepFailed when it does not end."""
    opened = open_operation("run", "placement", str(placement.pk))
    if opened is not None and not late:
        with transaction.atomic():
            ledger.ask_to_cancel(opened)
        return None
    if opened is not None:
        with transaction.atomic():
            ledger.supersede(opened, "The node is being revoked.")
    try:
        queries.require_serving(step.target_id)
    except NodeRevoked:
        raise
    except MirbadError:
        return "taken off a node that cannot be reached"
    about = replace(step, target_id=str(placement.pk), model_id=placement.model_id, node_id=step.target_id)
    try:
        asked = instances.stop(about, f"{step.key()}:{placement.pk}")
        view = instances.look(about) if asked is not None else None
    except StepFailed as failure:
        if failure.final or not late:
            raise
        return "taken off a node that cannot be reached"
    if view is None or view.state in instances.FINAL:
        return "stopped and taken off"
    if late:
        seconds = settings().revoke_stop_timeout.total_seconds()
        text = f"Model {placement.model_id!r} did not stop within {seconds:.0f} s; the node is not revoked."
        raise StepFailed("stop_timeout", text, final=True, lines=view.last_lines)
    return None


def _revoking(step: Step) -> Outcome:
    if Node.objects.filter(pk=step.target_id, lifecycle=REVOKED).exists():
        # By an earlier try of this stage: there is no way back, whoever asks.
        return Done("The node is revoked.", _result(step))
    if step.cancel_requested:
        return Cancelled("Ended before the node was revoked; models that were taken off it stay so.")
    if _next(step) is not None:
        return Go(STOPPING, "A model was placed on the node meanwhile.")
    with transaction.atomic():
        routing.bump()
        try:
            registry.revoke(step.target_id, Actor(step.actor), operation_id=step.operation_id)
        except NodeRevoked:
            return Done("The node is revoked.", _result(step))
    return Done("The node is revoked: its keys and its id never come back.", _result(step))


def _result(step: Step) -> dict[str, object]:
    return {"unplaced": list(step.state.get("unplaced", []))}


def _next(step: Step) -> Placement | None:
    return Placement.objects.filter(node_id_text=step.target_id).order_by("created_at", "pk").first()


def _ended(step: Step, outcome: str, code: str) -> None:
    if outcome == SUCCEEDED:
        return
    for placement in Placement.objects.filter(node_id_text=step.target_id):
        holds.release(placement.model_id, step.operation_id)
    if not step.input.get("wasDraining"):
        registry.let_work_in(step.target_id)
    if Node.objects.filter(pk=step.target_id).exists():
        audit_log.record(
            "node.revoke",
            Actor(step.actor),
            node_id=step.target_id,
            operation_id=step.operation_id,
            result="failed",
            error_code=code or ("cancelled" if outcome == CANCELLED else ""),
        )


KIND = Kind(name=NAME, lane="identity", stages={STOPPING: _stopping, REVOKING: _revoking}, ended=_ended)
