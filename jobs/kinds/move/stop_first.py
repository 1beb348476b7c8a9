"""A move that stops the source first: for a model that does not run, a node that is away, or whoever wants it so.

downloading → stopping-source → source-stopped → placement-committed → starting-target → done
"""

from django.db import transaction

from audit import log as audit_log
from jobs import instances, starting
from jobs.base import Done, Go, Outcome, Step
from jobs.errors import StepFailed
from jobs.kinds.move import target
from jobs.kinds.move.handover import want_stopped
from jobs.kinds.move.plan import (
    ACTOR,
    AWAY,
    PLACEMENT_COMMITTED,
    SOURCE_STOPPED,
    STARTING_TARGET,
    Plan,
    at_source,
    at_target,
    ending,
    for_good,
    pause,
    placement_at,
    plan_of,
    poll,
    since,
    stopped_or_view,
    undo,
    why_away,
)
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from models_app import intents
from models_app.models import Placement, RunningIntent
from models_app.placement import apply
from models_app.placement import handover as placing
from models_app.states import RUNNING

STOPPED_BY_US = "stopped"
"""In an operation's state: the move may have stopped an engine that is to run."""


def stopping_source(step: Step) -> Outcome:
    """The engine is stopped, and the node says so. While the node is away the move waits."""
    plan = plan_of(step)
    if step.state.get("forced"):
        text = f"Node {plan.source_node} was given up: what may run there gets no requests."
        return Go(SOURCE_STOPPED, text)
    if step.cancel_requested:
        return undo()
    source = placement_at(plan.source)
    if source is None:
        return Go(SOURCE_STOPPED, f"It stands on node {plan.source_node} no more.")
    if away := why_away(plan.source_node):
        return pause(f"{away} The move goes on once the node is back.")
    if plan.running and not step.state.get(STOPPED_BY_US):
        # Written down before the engine is asked to end, so that undoing knows of it.
        return poll(f"Stopping it on node {plan.source_node}.", {STOPPED_BY_US: True})
    want_stopped(step, source)
    about = at_source(step, plan)
    view = stopped_or_view(about)
    if view is None:
        instances.refresh(about)
        return Go(SOURCE_STOPPED, f"It has stopped on node {plan.source_node}.")
    began, note = since(step, "stopSince")
    allowed = settings().moves_stop_timeout
    if clock.now() - began > allowed:
        text = f"The engine on node {plan.source_node} did not end within {allowed.total_seconds():.0f} s."
        return undo(StepFailed("stop_timeout", text, final=True, lines=view.last_lines))
    return poll("Stopping the engine.", note)


def source_stopped(step: Step) -> Outcome:
    """The commit: the model stands on the target, and what was measured of its start counts no more."""
    plan = plan_of(step)
    forced = bool(step.state.get("forced"))
    if not Placement.objects.filter(pk=plan.arrival.id).exists():
        try:
            if not forced:
                starting.ready_node(at_target(step, plan))
            _commit(step, plan)
        except MirbadError as error:
            if (failure := for_good(error)) is None:
                raise
            return undo(failure)
    return Go(PLACEMENT_COMMITTED, f"It stands on node {step.node_id} now.")


def _commit(step: Step, plan: Plan) -> None:
    with transaction.atomic():
        new = placing.replace(plan.source, plan.arrival, running=plan.running)
        if new and plan.running:
            _note_start(step, step.node_id, f"for a move from node {plan.source_node}")


def commit_undone(_: Step, failure: StepFailed) -> Outcome:
    """The target was away for too long before anything was committed."""
    text = f"{failure.detail} It was away for too long."
    return undo(StepFailed(failure.step_code, text, final=True))


def placement_committed(step: Step) -> Outcome:
    """There is no way back from here."""
    if not plan_of(step).running:
        return Done(f"It stands on node {step.node_id}. It did not run, so it was not started.", _result(step))
    return Go(STARTING_TARGET, f"Starting it on node {step.node_id}.")


def starting_target(step: Step) -> Outcome:
    """It is started on the target. Whatever becomes of that, it stays there."""
    plan = plan_of(step)
    about = at_target(step, plan)
    try:
        placement = target.placement_of(about)
        if not target.is_ordered(step):
            return target.order(about, placement)
        if wait := target.not_ready(about, placement):
            return wait
    except MirbadError as error:
        if (failure := for_good(error)) is None:
            raise
        return not_started(step, failure)
    return Done(f"It runs on node {step.node_id}.", _result(step))


def not_started(step: Step, failure: StepFailed) -> Done:
    """The end of a move whose model does not run on the target: done, with the reason."""
    code = failure.step_code
    placement = Placement.objects.filter(pk=plan_of(step).arrival.id).first()
    if placement is not None:
        with transaction.atomic():
            if code in AWAY:
                intents.ask([placement], RunningIntent.ASKED)
            else:
                apply.want_stopped(placement)
    detail = f"{failure.detail} It is started once the node works again." if code in AWAY else failure.detail
    start = {"code": code, "detail": detail, "lines": list(failure.lines)}
    return Done(f"It stands on node {step.node_id} but was not started: {detail}", {**_result(step), "start": start})


def undoing(step: Step) -> Outcome:
    """The source runs again if the move had stopped it."""
    plan = plan_of(step)
    where = f"The model stands on node {plan.source_node} as before."
    source = placement_at(plan.source)
    if source is None or not plan.running or not step.state.get(STOPPED_BY_US):
        return ending(step, where)
    about = at_source(step, plan)
    if target.is_ordered(step):
        return ending(step, f"{where} It is starting again.")
    with transaction.atomic():
        if apply.want_running(source, ""):
            _note_start(step, plan.source_node, f"since the move to node {step.node_id} was undone")
    view = instances.look(about)
    if view is not None and view.state not in instances.FINAL:
        if not view.stop_requested:
            return ending(step, f"{where} It was not stopped.")
        if not starting.late(step, settings().moves_stop_timeout):
            return poll("Waiting for the engine that ends.")
        with transaction.atomic():
            intents.ask([source], RunningIntent.ASKED)
        return ending(step, f"{where} It is started again once its engine has ended.")
    try:
        return target.order(about, source, draining=True)
    except MirbadError as error:
        if (failure := for_good(error)) is None:
            raise
        return _not_restarted(step, source, failure)


def _not_restarted(step: Step, source: Placement, failure: StepFailed) -> Outcome:
    with transaction.atomic():
        apply.want_stopped(source)
    text = f"Node {source.node_id_text} did not start it again: {failure.detail} Start it there once that is mended."
    return ending(step, text)


def gave_up(step: Step, failure: StepFailed) -> Outcome:
    """The source was away for too long to be told: it is wanted there, and started once it is back."""
    source = placement_at(plan_of(step).source)
    if source is not None and source.desired == RUNNING:
        with transaction.atomic():
            intents.ask([source], RunningIntent.ASKED)
    return ending(step, f"{failure.detail} The model is started there once the node is back.")


def _note_start(step: Step, node_id: str, why: str) -> None:
    audit_log.record(
        "model.start",
        ACTOR,
        node_id=node_id,
        model_id=step.model_id,
        operation_id=step.operation_id,
        result="accepted",
        detail=why,
    )


def _result(step: Step) -> dict[str, object]:
    return {"nodeId": step.node_id}
