"""A hand-over: the target is ready before it gets requests, the source finishes those that it has.

downloading → starting-target → target-ready → placement-committed → draining-source → stopping-source → done

The order keeps requests from failing, and each line may be repeated after a crash:

1. The target's placement is created without a route, and its engine started. The source serves alone.
2. `target_ready` is the cutover: one UPDATE of `routed` over both rows, with the version of the routing table. Before
   it, everything can be undone by removing the target; after it, nothing is undone any more.
3. `draining_source` waits until the source has no open request: twice in a row, and no sooner than `SETTLE` after the
   cutover, since a web process with the old table may still send one.
4. Only then does the source's engine stop, and its placement is removed. Its desired state is written before the call,
   so that a crash between the two leaves no engine that is desired and stopped.
"""

from datetime import timedelta

from django.db import transaction

from agent.wire.instances import InstanceState
from audit import log as audit_log
from jobs.base import Done, Go, Outcome, Wait
from jobs.errors import StepFailed
from jobs.kinds.move import engine_start
from jobs.kinds.move.plan import (
    ACTOR,
    DRAINING_SOURCE,
    PLACEMENT_COMMITTED,
    STARTING_TARGET,
    STOPPING_SOURCE,
    TARGET_READY,
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
from models_app.models import Placement
from models_app.placement import apply
from models_app.placement import relocate as placing

SETTLE = timedelta(seconds=3)
"""Time for every web process to read the new routing table; requests on their way arrive meanwhile."""


def starting_target(step: MoveStep) -> Outcome:
    """Start the engine on the target, while the source serves."""
    plan = plan_of(step)
    if step.cancel_requested:
        return undo(step)
    engine = plan.target_engine
    try:
        if step.state.ordered is None:
            return engine_start.request(step, engine, _arrived(step, plan))
        if wait := engine_start.not_ready(step, engine, instances.placement_of(engine, step.model_id)):
            return wait
    except MirbadError as error:
        if (failure := for_good(error)) is None:
            raise
        return undo(step, failure)
    return Go(TARGET_READY, f"The engine on node {step.node_id} is ready.")


def _arrived(step: MoveStep, plan: Plan) -> Placement:
    with transaction.atomic():
        placement, new = placing.bring_up(plan.arrival)
        if new:
            audit_log.record(
                "model.start",
                ACTOR,
                node_id=step.node_id,
                model_id=step.model_id,
                operation_id=step.operation_id,
                result="accepted",
                detail=f"for a move from node {plan.source_node}",
            )
    return placement


def target_ready(step: MoveStep) -> Outcome:
    """Do the cutover: observed ready once more, the target gets the requests from here on."""
    plan = plan_of(step)
    engine = plan.target_engine
    committed = Go(PLACEMENT_COMMITTED, f"Requests go to node {step.node_id} now.")
    if Placement.objects.filter(pk=plan.arrival.id, routed=True).exists():
        return committed
    if step.cancel_requested:
        return undo(step)
    view = instances.look(engine)
    if (state := engine_start.once_more(step, view)) is not None:
        return Go(STARTING_TARGET, "The machine rebooted: starting the engine again.", state)
    if view is None or view.state in instances.FINAL:
        text = f"The engine on node {step.node_id} ended before requests were sent there."
        return undo(step, starting.died(view) if view else StepFailed("instance_lost", text, final=True))
    if view.state == InstanceState.READY:
        instances.refresh(engine.node_id)
        if placing.switch(plan.source, plan.arrival.id):
            return committed
    if starting.late(step, settings().moves_start_target_timeout):
        text = f"The engine on node {step.node_id} does not stay ready ({view.state})."
        return undo(step, StepFailed("not_ready", text, final=True, lines=view.last_lines))
    return poll("Waiting until the engine is ready.")


def placement_committed(step: MoveStep) -> Outcome:
    """Pass the point from which there is no way back."""
    return Go(DRAINING_SOURCE, f"Waiting for open requests on node {plan_of(step).source_node}.")


def draining_source(step: MoveStep) -> Outcome:
    """Wait until the source has no open request. A source that is away or has stopped has none to wait for."""
    plan = plan_of(step)
    if why_away(plan.source_node):
        return Go(STOPPING_SOURCE, f"Node {plan.source_node} does not answer.")
    view = instances.look(plan.source_engine)
    if view is None or view.state in instances.FINAL:
        return Go(STOPPING_SOURCE, f"The engine on node {plan.source_node} has ended.")
    if starting.late(step, settings().moves_drain_timeout):
        seconds = settings().moves_drain_timeout.total_seconds()
        return Go(STOPPING_SOURCE, f"{_count(view.open_requests)} after {seconds:.0f} s: ending them.")
    # Two looks in a row: a request that was on its way at the first one has arrived by the second.
    quiet = view.open_requests == 0 and starting.late(step, SETTLE)
    if quiet and step.state.quiet:
        return Go(STOPPING_SOURCE, "All requests on the old node have finished.")
    return poll(f"{_count(view.open_requests)}.", step.state.changed(quiet=quiet))


def _count(count: int | None) -> str:
    if count is None:
        return "The node does not report its open requests"
    return "1 open request on the old node" if count == 1 else f"{count} open requests on the old node"


def stopping_source(step: MoveStep) -> Outcome:
    """Stop the engine without requests, and remove its placement."""
    plan = plan_of(step)
    if step.state.forced:
        return _gone(step, plan, f"The model runs on node {step.node_id}; node {plan.source_node} was given up.")
    source = placement_at(plan.source)
    if source is None:
        return _gone(step, plan, f"The model runs on node {step.node_id}.")
    stop_source(step, source)
    if away := why_away(plan.source_node):
        return pause(f"{away} The move continues once the node is back.")
    engine = plan.source_engine
    view = instances.stop(engine, stop_key(step, engine))
    if view is None:
        instances.refresh(engine.node_id)
        return _gone(step, plan, f"The model runs on node {step.node_id}.")
    allowed = settings().moves_stop_timeout
    began = step.state.stop_since or clock.now()
    if clock.now() - began > allowed:
        text = f"The model runs on node {step.node_id}. The engine on {plan.source_node} did not stop within"
        text = f"{text} {allowed.total_seconds():.0f} s. It gets no requests, and is stopped again later."
        return _gone(step, plan, text)
    return poll("Stopping the engine.", step.state.changed(stop_since=began))


def stop_source(step: MoveStep, source: Placement) -> None:
    """Write that the source is to stop, once, with its audit line."""
    with transaction.atomic():
        if apply.set_desired_stopped(source):
            audit_log.record(
                "model.stop",
                ACTOR,
                node_id=source.node_id_text,
                model_id=step.model_id,
                operation_id=step.operation_id,
                result="accepted",
                detail=f"for a move to node {step.node_id}",
            )


def _gone(step: MoveStep, plan: Plan, text: str) -> Done:
    if plan.source is not None:
        with transaction.atomic():
            placing.leave(plan.source)
    return Done(text, {"nodeId": step.node_id})


def undoing(step: MoveStep) -> Outcome:
    """Stop the target's engine and remove its placement; the source has served all the time."""
    plan = plan_of(step)
    engine = plan.target_engine
    if Placement.objects.filter(pk=plan.arrival.id).exists():
        view = instances.stop(engine, stop_key(step, engine))
        if view is not None and not starting.late(step, settings().moves_stop_timeout):
            return poll("Stopping the engine on the target.")
    return undone(step)


def undone(step: MoveStep, _: StepFailed | None = None) -> Outcome:
    """Return the end of an undone move; an engine that could not be stopped is an orphan now."""
    plan = plan_of(step)
    with transaction.atomic():
        placing.leave(plan.arrival.id)
    return ending(step, f"The model stays on node {plan.source_node}.")


def gave_up(step: MoveStep, failure: StepFailed) -> Outcome:
    """Undo the move: the target was away for too long."""
    text = f"{failure.detail} Node {step.node_id} was away for too long."
    return undo(step, StepFailed(failure.step_code, text, final=True))


def drained_unseen(step: MoveStep, failure: StepFailed) -> Outcome:
    """Continue: the source was away for too long to report its open requests."""
    return Go(STOPPING_SOURCE, failure.detail)


def never(_: MoveStep, failure: StepFailed) -> Wait:
    """Wait on, as long as it takes."""
    return pause(failure.detail)
