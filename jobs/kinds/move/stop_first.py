"""A move that stops the source first: for a model that does not run, a source that is away, or on request.

downloading → stopping-source → source-stopped → placement-committed → starting-target → done

The order keeps the model from running twice, and from being lost; each line may be repeated after a crash:

1. `stopping_source` writes `stopped` into the state before it stops anything: from then on, undoing starts the engine
   on the source again. Without that note, an engine that was stopped just before a crash would stay stopped.
2. The source's engine is observed as stopped before the commit. A source that is away is waited for, since its engine
   may still run; only a force-commit passes that.
3. `source_stopped` is the commit: one transaction replaces the source's placement by the target's. Checks of the target
   that can fail come before it. Before the commit everything can be undone; after it, nothing is.
4. The start on the target comes last. A failure there ends the move as done, with the reason: the model is placed on
   the target, and stays there.

A model that is placed nowhere begins at `source_stopped`.
"""

from django.db import transaction

from audit import log as audit_log
from jobs.base import Done, Go, Outcome
from jobs.errors import StepFailed
from jobs.kinds.move import engine_start
from jobs.kinds.move.handover import stop_source
from jobs.kinds.move.plan import (
    ACTOR,
    AWAY,
    PLACEMENT_COMMITTED,
    SOURCE_STOPPED,
    STARTING_TARGET,
    MoveStep,
    Plan,
    ending,
    for_good,
    pause,
    placement_at,
    plan_of,
    poll,
    stop_key,
    undo,
    why_away,
)
from jobs.steps import instances, starting
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from models_app import intents
from models_app.models import Placement, RunningIntent
from models_app.placement import apply
from models_app.placement import relocate as placing
from models_app.states import RUNNING


def stopping_source(step: MoveStep) -> Outcome:
    """Stop the engine, until the node reports it stopped. While the node is away the move waits."""
    plan = plan_of(step)
    if step.state.forced:
        text = f"Node {plan.source_node} was given up: an engine there gets no requests."
        return Go(SOURCE_STOPPED, text)
    if step.cancel_requested:
        return undo(step)
    source = placement_at(plan.source)
    if source is None:
        return Go(SOURCE_STOPPED, f"The model is no longer placed on node {plan.source_node}.")
    if away := why_away(plan.source_node):
        return pause(f"{away} The move continues once the node is back.")
    if plan.running and not step.state.stopped:
        # Written down before the engine is stopped, so that undoing starts it again.
        return poll(f"Stopping the engine on node {plan.source_node}.", step.state.changed(stopped=True))
    stop_source(step, source)
    engine = plan.source_engine
    view = instances.stop(engine, stop_key(step, engine))
    if view is None:
        instances.refresh(engine.node_id)
        return Go(SOURCE_STOPPED, f"The engine on node {plan.source_node} has stopped.")
    began = step.state.stop_since or clock.now()
    allowed = settings().moves_stop_timeout
    if clock.now() - began > allowed:
        text = f"The engine on node {plan.source_node} did not stop within {allowed.total_seconds():.0f} s."
        return undo(step, StepFailed("stop_timeout", text, final=True, lines=view.last_lines))
    return poll("Stopping the engine.", step.state.changed(stop_since=began))


def source_stopped(step: MoveStep) -> Outcome:
    """Commit: the model is placed on the target, and measurements of its start on the source are dropped."""
    plan = plan_of(step)
    forced = step.state.forced
    if not Placement.objects.filter(pk=plan.arrival.id).exists():
        try:
            if not forced:
                starting.ready_node(step.node_id)
            _commit(step, plan)
        except MirbadError as error:
            if (failure := for_good(error)) is None:
                raise
            return undo(step, failure)
    return Go(PLACEMENT_COMMITTED, f"The model is placed on node {step.node_id}.")


def _commit(step: MoveStep, plan: Plan) -> None:
    with transaction.atomic():
        new = placing.replace(plan.source, plan.arrival, running=plan.running)
        if new and plan.running:
            _note_start(step, step.node_id, f"for a move from node {plan.source_node}")


def commit_undone(step: MoveStep, failure: StepFailed) -> Outcome:
    """Undo the move: the target was away for too long before the commit."""
    text = f"{failure.detail} The node was away for too long."
    return undo(step, StepFailed(failure.step_code, text, final=True))


def placement_committed(step: MoveStep) -> Outcome:
    """Pass the point from which there is no way back."""
    if not plan_of(step).running:
        return Done(
            f"The model is placed on node {step.node_id}. It did not run before, so it was not started.", _result(step)
        )
    return Go(STARTING_TARGET, f"Starting the engine on node {step.node_id}.")


def starting_target(step: MoveStep) -> Outcome:
    """Start the engine on the target. The model stays there, also when the start fails."""
    plan = plan_of(step)
    engine = plan.target_engine
    try:
        placement = instances.placement_of(engine, step.model_id)
        if step.state.ordered is None:
            return engine_start.request(step, engine, placement)
        if wait := engine_start.not_ready(step, engine, placement):
            return wait
    except MirbadError as error:
        if (failure := for_good(error)) is None:
            raise
        return not_started(step, failure)
    return Done(f"The model runs on node {step.node_id}.", _result(step))


def not_started(step: MoveStep, failure: StepFailed) -> Done:
    """Return the end of a move without a start on the target: done, with the reason."""
    code = failure.step_code
    placement = Placement.objects.filter(pk=plan_of(step).arrival.id).first()
    if placement is not None:
        with transaction.atomic():
            if code in AWAY:
                intents.ask([placement], RunningIntent.ASKED)
            else:
                apply.set_desired_stopped(placement)
    detail = f"{failure.detail} The model starts once the node works again." if code in AWAY else failure.detail
    start = {"code": code, "detail": detail, "lines": list(failure.lines)}
    return Done(
        f"The model is placed on node {step.node_id}, but was not started: {detail}", {**_result(step), "start": start}
    )


def undoing(step: MoveStep) -> Outcome:
    """Start the source again if the move has stopped it."""
    plan = plan_of(step)
    where = f"The model stays on node {plan.source_node}."
    source = placement_at(plan.source)
    if source is None or not plan.running or not step.state.stopped:
        return ending(step, where)
    engine = plan.source_engine
    if step.state.ordered is not None:
        return ending(step, f"{where} It is starting again.")
    with transaction.atomic():
        if apply.set_desired_running(source, ""):
            _note_start(step, plan.source_node, f"since the move to node {step.node_id} was undone")
    view = instances.look(engine)
    if view is not None and view.state not in instances.FINAL:
        if not view.stop_requested:
            return ending(step, f"{where} It was not stopped.")
        if not starting.late(step, settings().moves_stop_timeout):
            return poll("Waiting for the engine to stop.")
        with transaction.atomic():
            intents.ask([source], RunningIntent.ASKED)
        return ending(step, f"{where} It starts again once its old engine has stopped.")
    try:
        return engine_start.request(step, engine, source, draining=True)
    except MirbadError as error:
        if (failure := for_good(error)) is None:
            raise
        return _not_restarted(step, source, failure)


def _not_restarted(step: MoveStep, source: Placement, failure: StepFailed) -> Outcome:
    with transaction.atomic():
        apply.set_desired_stopped(source)
    text = f"Node {source.node_id_text} did not start it again: {failure.detail} Fix the cause, then start it there."
    return ending(step, text)


def gave_up(step: MoveStep, failure: StepFailed) -> Outcome:
    """Return the end of an undone move with the source away: the model starts there once the node is back."""
    source = placement_at(plan_of(step).source)
    if source is not None and source.desired == RUNNING:
        with transaction.atomic():
            intents.ask([source], RunningIntent.ASKED)
    return ending(step, f"{failure.detail} The model starts there once the node is back.")


def _note_start(step: MoveStep, node_id: str, why: str) -> None:
    audit_log.record(
        "model.start",
        ACTOR,
        node_id=node_id,
        model_id=step.model_id,
        operation_id=step.operation_id,
        result="accepted",
        detail=why,
    )


def _result(step: MoveStep) -> dict[str, object]:
    return {"nodeId": step.node_id}
