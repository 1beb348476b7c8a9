"""Unplace a model: stopping (each engine is stopped, then its placement removed) → done. Its folder stays.

A node that is away is waited for, for a limited time; then the model stays placed there.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction

from jobs import ledger
from jobs.base import Audit, Cancelled, Done, Kind, Moment, OperationData, Outcome, Stage, Step, Wait
from jobs.errors import StepFailed
from jobs.queries import open_operation
from jobs.states import SUCCEEDED
from jobs.steps import instances
from jobs.steps.instances import Engine
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError, NotFound
from models_app import holds
from models_app.models import Placement
from models_app.placement import apply, gpu_conditions
from nodes import queries as node_queries
from nodes.errors import NodeRevoked

NAME = "unplace"
STOPPING = "stopping"


class UnplaceInput(OperationData):
    """`placements` are removed; `node_id` is the node that the request named, if it named one."""

    placements: tuple[UUID, ...] = ()
    node_id: str = ""


class UnplaceState(OperationData):
    """`since` is when the stop of each placement began; `unplaced` are the nodes so far."""

    since: Mapping[str, Moment] = {}
    unplaced: tuple[str, ...] = ()


UnplaceStep = Step[UnplaceInput, UnplaceState]


def hold_id(operation_id: str) -> str:
    """Return the id under which an unplace holds its model."""
    return f"unplace-{operation_id}"


def _stopping(step: UnplaceStep) -> Outcome:
    if step.cancel_requested:
        return Cancelled("Cancelled; stopped models stay stopped, removed placements stay removed.")
    left = Placement.objects.filter(pk__in=step.input.placements).order_by("node_id_text")
    placement = left.first()
    if placement is None:
        return Done("The model is unplaced; its weights stay on the node.", _result(step))
    began = step.state.since.get(str(placement.pk)) or clock.now()
    state = step.state.changed(since={**step.state.since, str(placement.pk): began})
    how = _stop(step, placement, clock.now() - began)
    if how is None:
        text = _waiting(placement.node_id_text) or f"Stopping the engine on node {placement.node_id_text}."
        return Wait(settings().moves_poll_interval.total_seconds(), {"text": text}, state)
    with transaction.atomic():
        apply.remove_placement(placement, step.actor, how)
        gpu_conditions.refresh(placement.node_id_text)
    state = state.changed(unplaced=(*state.unplaced, placement.node_id_text))
    return Wait(0.0, {"text": f"{placement.node_id_text}: {how}."}, state)


def _stop(step: UnplaceStep, placement: Placement, waited: timedelta) -> str | None:
    """Return the fate of the engine, for the audit line; None while it is stopping. StepFailed at a timeout."""
    try:
        node_queries.require_serving(placement.node_id_text)
    except (NodeRevoked, NotFound):
        return "unplaced; its node is gone"
    except MirbadError as error:
        _require_patience(placement, waited, StepFailed(error.code, error.detail, final=False))
        return None
    with transaction.atomic():
        apply.set_desired_stopped(placement)
        opened = open_operation("run", "placement", str(placement.pk))
        if opened is not None:
            ledger.ask_to_cancel(opened)
    if opened is not None and waited <= settings().moves_stop_timeout:
        return None
    engine = Engine(placement.node_id_text, str(placement.pk))
    try:
        view = instances.stop(engine, f"{step.key()}:{placement.pk}")
    except StepFailed as failure:
        if failure.final:
            raise
        _require_patience(placement, waited, failure)
        return None
    if view is None:
        return "stopped and unplaced; its folder stays"
    if waited > settings().moves_stop_timeout:
        seconds = settings().moves_stop_timeout.total_seconds()
        text = f"The engine on node {placement.node_id_text} did not stop within {seconds:.0f} s and stays there."
        raise StepFailed("stop_timeout", f"{text} Try again, or check the node.", final=True, lines=view.last_lines)
    return None


def _waiting(node_id: str) -> str:
    """Return the reason why the node cannot be commanded now; "" when it can."""
    try:
        node_queries.require_serving(node_id)
    except MirbadError as error:
        return f"{error.detail} Waiting for it."
    return ""


def _require_patience(placement: Placement, waited: timedelta, failure: StepFailed) -> None:
    if waited > settings().moves_resume_node_wait:
        text = f"{failure.detail} It stays placed on node {placement.node_id_text}; unplace it once the node is back."
        raise StepFailed(failure.step_code, text, final=True)


def _result(step: UnplaceStep) -> dict[str, Any]:
    return {"nodeIds": list(step.state.unplaced)}


def _release(step: UnplaceStep, _outcome: str, _code: str) -> None:
    holds.release(step.model_id, hold_id(step.operation_id))


KIND = Kind(
    name=NAME,
    title="Unplace",
    concurrency_group="placement",
    Input=UnplaceInput,
    State=UnplaceState,
    stages=(Stage(STOPPING, "Stop and unplace the model", _stopping),),
    # After a success, each placement that was removed has its own line.
    audit=Audit("model.unplace", applies=lambda _, outcome: outcome != SUCCEEDED),
    on_end=_release,
)
