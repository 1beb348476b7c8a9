"""Take a model off its nodes: stopping (each engine is stopped, then its place given up) → done. Its folder stays.

A node that is away is waited for a while; then the model stays where it is.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction

from audit import log as audit_log
from jobs import instances, ledger
from jobs.base import Cancelled, Done, Kind, Outcome, Step, Wait
from jobs.errors import StepFailed
from jobs.queries import open_operation
from jobs.states import CANCELLED, SUCCEEDED
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError, NotFound
from models_app import holds
from models_app.models import Placement
from models_app.placement import apply, reconcile
from nodes import queries as node_queries
from nodes.errors import NodeRevoked

NAME = "unplace"
STOPPING = "stopping"


def hold_id(operation_id: str) -> str:
    """The id under which an unplace holds its model."""
    return f"unplace-{operation_id}"


def _stopping(step: Step) -> Outcome:
    if step.cancel_requested:
        return Cancelled("Ended; what was stopped or taken off its node stays so.")
    left = Placement.objects.filter(pk__in=[UUID(pk) for pk in step.input["placements"]]).order_by("node_id_text")
    placement = left.first()
    if placement is None:
        return Done("It stands on no node of those any more; its weights stay there.", _result(step))
    since = dict(step.state.get("since", {}))
    began = datetime.fromisoformat(since.setdefault(str(placement.pk), clock.now().isoformat()))
    how = _stop(step, placement, clock.now() - began)
    if how is None:
        text = _waiting(placement.node_id_text) or f"Stopping it on node {placement.node_id_text}."
        return Wait(settings().moves_poll_interval.total_seconds(), {"text": text}, {"since": since})
    with transaction.atomic():
        apply.take_off(placement, Actor(step.actor), how)
        reconcile.note_missing_gpus(placement.node_id_text)
    taken = [*step.state.get("unplaced", []), placement.node_id_text]
    return Wait(0.0, {"text": f"{placement.node_id_text}: {how}."}, {"since": since, "unplaced": taken})


def _stop(step: Step, placement: Placement, waited: timedelta) -> str | None:
    """How the engine came to be off, for the audit line; None while it still ends. StepFailed when it does not."""
    try:
        node_queries.require_serving(placement.node_id_text)
    except (NodeRevoked, NotFound):
        return "taken off a node that is gone"
    except MirbadError as error:
        _require_patience(placement, waited, StepFailed(error.code, error.detail, final=False))
        return None
    with transaction.atomic():
        apply.want_stopped(placement)
        opened = open_operation("run", "placement", str(placement.pk))
        if opened is not None:
            ledger.ask_to_cancel(opened)
    if opened is not None and waited <= settings().moves_stop_timeout:
        return None
    about = replace(step, target_id=str(placement.pk), node_id=placement.node_id_text)
    try:
        asked = instances.stop(about, f"{step.key()}:{placement.pk}")
        view = instances.look(about) if asked is not None else None
    except StepFailed as failure:
        if failure.final:
            raise
        _require_patience(placement, waited, failure)
        return None
    if view is None or view.state in instances.FINAL:
        return "stopped and taken off; its folder stays"
    if waited > settings().moves_stop_timeout:
        seconds = settings().moves_stop_timeout.total_seconds()
        text = f"The engine on node {placement.node_id_text} did not end within {seconds:.0f} s and stays there."
        raise StepFailed("stop_timeout", f"{text} Try again, or look at the node.", final=True, lines=view.last_lines)
    return None


def _waiting(node_id: str) -> str:
    """Why the node cannot be asked for anything now; "" when it can."""
    try:
        node_queries.require_serving(node_id)
    except MirbadError as error:
        return f"{error.detail} Waiting for it."
    return ""


def _require_patience(placement: Placement, waited: timedelta, failure: StepFailed) -> None:
    if waited > settings().moves_resume_node_wait:
        text = f"{failure.detail} The model stays on node {placement.node_id_text}; unplace it once the node is back."
        raise StepFailed(failure.step_code, text, final=True)


def _result(step: Step) -> dict[str, Any]:
    return {"nodeIds": list(step.state.get("unplaced", []))}


def _ended(step: Step, outcome: str, code: str) -> None:
    holds.release(step.model_id, hold_id(step.operation_id))
    if outcome == SUCCEEDED:
        # Each place that was given up has its line.
        return
    audit_log.record(
        "model.unplace",
        Actor(step.actor),
        node_id=step.node_id,
        model_id=step.model_id,
        operation_id=step.operation_id,
        result="failed",
        error_code=code or ("cancelled" if outcome == CANCELLED else ""),
    )


KIND = Kind(name=NAME, lane="placement", stages={STOPPING: _stopping}, ended=_ended)
