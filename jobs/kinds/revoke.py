"""Revoke a node: stopping (each model is stopped and unplaced) → revoking → done.

The node accepts no new models meanwhile, and does again when the revoke fails; unplaced models stay unplaced. A node
that cannot be reached is revoked all the same: nothing can be requested of it, and its key stops working. A fenced
master revokes, too, and leaves the engines to the master that the node obeys.
"""

from collections.abc import Mapping

from django.db import transaction

from jobs import ledger
from jobs.base import Audit, Cancelled, Done, Go, Kind, Moment, OperationData, Outcome, Stage, Step, Wait
from jobs.errors import StepFailed
from jobs.queries import open_operation
from jobs.states import SUCCEEDED
from jobs.steps import instances
from jobs.steps.instances import Engine
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from models_app import holds, routing
from models_app.models import Placement
from models_app.placement import apply
from nodes import fencing, queries, registry
from nodes.errors import NodeRevoked
from nodes.models import Node
from nodes.states import REVOKED

NAME = "revoke"
STOPPING = "stopping"
REVOKING = "revoking"

_LOOK_SECONDS = 0.5


class RevokeInput(OperationData):
    """`was_draining` is whether the node was draining before the request."""

    unplace_models: bool = False
    was_draining: bool = False


class RevokeState(OperationData):
    """`since` is when the stop of each placement began; `unplaced` are the models so far."""

    since: Mapping[str, Moment] = {}
    unplaced: tuple[str, ...] = ()


RevokeStep = Step[RevokeInput, RevokeState]


def _stopping(step: RevokeStep) -> Outcome:
    if step.cancel_requested:
        return Cancelled("Cancelled before the node was revoked; unplaced models stay unplaced.")
    placement = _next(step)
    if placement is None:
        return Go(REVOKING, "No model is placed on the node.")
    if not step.input.unplace_models:
        raise StepFailed("models_placed", f"Model {placement.model_id!r} is placed on the node.", final=True)
    began = step.state.since.get(str(placement.pk)) or clock.now()
    state = step.state.changed(since={**step.state.since, str(placement.pk): began})
    late = clock.now() - began > settings().revoke_stop_timeout
    try:
        how = _stop(step, placement, late=late)
    except StepFailed as failure:
        if failure.final:
            raise
        return Wait(_LOOK_SECONDS, {"text": failure.detail}, state)
    if how is None:
        return Wait(_LOOK_SECONDS, {"text": f"Stopping {placement.model_id}."}, state)
    with transaction.atomic():
        apply.remove_placement(placement, step.actor, how)
        holds.release(placement.model_id, step.operation_id)
    state = state.changed(unplaced=(*state.unplaced, placement.model_id))
    return Wait(0.0, {"text": f"{placement.model_id}: {how}."}, state)


def _stop(step: RevokeStep, placement: Placement, *, late: bool) -> str | None:
    """Return the fate of the model's engine, for the audit line; None while it is stopping. StepFailed at a timeout."""
    opened = open_operation("run", "placement", str(placement.pk))
    fenced = fencing.is_fenced()
    if opened is not None and not late and not fenced:
        with transaction.atomic():
            ledger.ask_to_cancel(opened)
        return None
    if opened is not None:
        with transaction.atomic():
            ledger.supersede(opened, "The node is being revoked.")
    if fenced:
        return "unplaced; this master is fenced and cannot stop its engine"
    try:
        queries.require_serving(step.target_id)
    except NodeRevoked:
        raise
    except MirbadError:
        return "unplaced; its node cannot be reached"
    try:
        view = instances.stop(Engine(step.target_id, str(placement.pk)), f"{step.key()}:{placement.pk}")
    except StepFailed as failure:
        if failure.final or not late:
            raise
        return "unplaced; its node cannot be reached"
    if view is None:
        return "stopped and unplaced"
    if late:
        seconds = settings().revoke_stop_timeout.total_seconds()
        text = f"Model {placement.model_id!r} did not stop within {seconds:.0f} s; the node is not revoked."
        raise StepFailed("stop_timeout", text, final=True, lines=view.last_lines)
    return None


def _revoking(step: RevokeStep) -> Outcome:
    if Node.objects.filter(pk=step.target_id, lifecycle=REVOKED).exists():
        # By an earlier try of this stage: there is no way back.
        return Done("The node is revoked.", _result(step))
    if step.cancel_requested:
        return Cancelled("Cancelled before the node was revoked; unplaced models stay unplaced.")
    if _next(step) is not None:
        return Go(STOPPING, "A model was placed on the node meanwhile.")
    with transaction.atomic():
        routing.bump()
        try:
            registry.revoke(step.target_id, step.actor, operation_id=step.operation_id)
        except NodeRevoked:
            return Done("The node is revoked.", _result(step))
    return Done("The node is revoked: its keys and its id can never be used again.", _result(step))


def _result(step: RevokeStep) -> dict[str, object]:
    return {"unplaced": list(step.state.unplaced)}


def _next(step: RevokeStep) -> Placement | None:
    return Placement.objects.filter(node_id_text=step.target_id).order_by("created_at", "pk").first()


def _release(step: RevokeStep, outcome: str, _: str) -> None:
    if outcome == SUCCEEDED:
        return
    for placement in Placement.objects.filter(node_id_text=step.target_id):
        holds.release(placement.model_id, step.operation_id)
    if not step.input.was_draining:
        registry.allow_new_models(step.target_id)


def _is_still_known(step: RevokeStep, outcome: str) -> bool:
    """Return whether the end needs a line: a success has that of the revoke itself."""
    return outcome != SUCCEEDED and Node.objects.filter(pk=step.target_id).exists()


KIND = Kind(
    name=NAME,
    title="Revoke",
    concurrency_group="identity",
    Input=RevokeInput,
    State=RevokeState,
    stages=(
        Stage(STOPPING, "Stop and unplace models", _stopping),
        Stage(REVOKING, "Revoke the keys", _revoking),
    ),
    audit=Audit("node.revoke", applies=_is_still_known),
    on_end=_release,
    while_fenced=True,
)
