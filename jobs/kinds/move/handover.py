"""A move without a pause: the target is up and answers before requests go there, the source ends what it began.

downloading → starting-target → target-ready → placement-committed → draining-source → stopping-source → done
"""

from datetime import timedelta

from django.db import transaction

from agent.wire.instances import InstanceState
from audit import log as audit_log
from jobs import instances, starting
from jobs.base import Done, Go, Outcome, Step, Wait
from jobs.errors import StepFailed
from jobs.kinds.move import target
from jobs.kinds.move.plan import (
    ACTOR,
    DRAINING_SOURCE,
    PLACEMENT_COMMITTED,
    STARTING_TARGET,
    STOPPING_SOURCE,
    TARGET_READY,
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
from models_app.models import Placement
from models_app.placement import apply
from models_app.placement import handover as placing

SETTLE = timedelta(seconds=3)
"""How long every process that routes may take to read the new table; requests on their way arrive meanwhile."""


def starting_target(step: Step) -> Outcome:
    """The model comes up on the target, beside the source that serves."""
    plan = plan_of(step)
    if step.cancel_requested:
        return undo()
    about = at_target(step, plan)
    try:
        if not target.is_ordered(step):
            return target.order(about, _arrived(step, plan))
        if wait := target.not_ready(about, target.placement_of(about)):
            return wait
    except MirbadError as error:
        if (failure := for_good(error)) is None:
            raise
        return undo(failure)
    return Go(TARGET_READY, f"It is ready on node {step.node_id}.")


def _arrived(step: Step, plan: Plan) -> Placement:
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


def target_ready(step: Step) -> Outcome:
    """The switch. Seen ready once more, the target gets the requests from here on."""
    plan = plan_of(step)
    about = at_target(step, plan)
    committed = Go(PLACEMENT_COMMITTED, f"Requests go to node {step.node_id} now.")
    if Placement.objects.filter(pk=plan.arrival.id, routed=True).exists():
        return committed
    if step.cancel_requested:
        return undo()
    view = instances.look(about)
    if (state := target.once_more(step, view)) is not None:
        return Go(STARTING_TARGET, "The machine was restarted meanwhile: starting it again.", state)
    if view is None or view.state in instances.FINAL:
        text = f"The engine on node {step.node_id} ended before requests were sent there."
        return undo(starting.died(view) if view else StepFailed("instance_lost", text, final=True))
    if view.state == InstanceState.READY:
        instances.refresh(about)
        if placing.switch(plan.source, plan.arrival.id):
            return committed
    if starting.late(step, settings().moves_start_target_timeout):
        text = f"The engine on node {step.node_id} does not stay ready ({view.state})."
        return undo(StepFailed("not_ready", text, final=True, lines=view.last_lines))
    return poll("Waiting until the engine answers as it should.")


def placement_committed(step: Step) -> Outcome:
    """There is no way back from here."""
    return Go(DRAINING_SOURCE, f"Waiting for what node {plan_of(step).source_node} has begun to answer.")


def draining_source(step: Step) -> Outcome:
    """The source ends its streams. A source that is away or has stopped has none that could be waited for."""
    plan = plan_of(step)
    if why_away(plan.source_node):
        return Go(STOPPING_SOURCE, f"Node {plan.source_node} does not answer now.")
    view = instances.look(at_source(step, plan))
    if view is None or view.state in instances.FINAL:
        return Go(STOPPING_SOURCE, "Its engine there has ended.")
    if starting.late(step, settings().moves_drain_timeout):
        seconds = settings().moves_drain_timeout.total_seconds()
        return Go(STOPPING_SOURCE, f"{_count(view.open_requests)} after {seconds:.0f} s; they are ended now.")
    # Two looks in a row: what was on its way to the node at the first one has arrived by the second.
    quiet = view.open_requests == 0 and starting.late(step, SETTLE)
    if quiet and step.state.get("quiet"):
        return Go(STOPPING_SOURCE, "All that was begun there is answered.")
    return poll(f"{_count(view.open_requests)}.", {"quiet": quiet})


def _count(count: int | None) -> str:
    if count is None:
        return "The node does not tell how many requests it still answers"
    return "1 request is still answered there" if count == 1 else f"{count} requests are still answered there"


def stopping_source(step: Step) -> Outcome:
    """The engine that nobody asks any more is stopped, and its place given up."""
    plan = plan_of(step)
    if step.state.get("forced"):
        return _gone(step, plan, f"It runs on node {step.node_id}; {plan.source_node} was given up.")
    source = placement_at(plan.source)
    if source is None:
        return _gone(step, plan, f"It runs on node {step.node_id}.")
    want_stopped(step, source)
    if away := why_away(plan.source_node):
        return pause(f"{away} The move goes on once the node is back.")
    about = at_source(step, plan)
    view = stopped_or_view(about)
    if view is None:
        instances.refresh(about)
        return _gone(step, plan, f"It runs on node {step.node_id}.")
    allowed = settings().moves_stop_timeout
    began, note = since(step, "stopSince")
    if clock.now() - began > allowed:
        seconds = allowed.total_seconds()
        text = f"It runs on node {step.node_id}. Its engine on {plan.source_node} did not end within {seconds:.0f} s."
        return _gone(step, plan, f"{text} It gets no requests, and is asked to stop again.")
    return poll("Stopping the engine.", note)


def want_stopped(step: Step, source: Placement) -> None:
    """Write that the source is to stop; once, with its audit line."""
    with transaction.atomic():
        if apply.want_stopped(source):
            audit_log.record(
                "model.stop",
                ACTOR,
                node_id=source.node_id_text,
                model_id=step.model_id,
                operation_id=step.operation_id,
                result="accepted",
                detail=f"for a move to node {step.node_id}",
            )


def _gone(step: Step, plan: Plan, text: str) -> Done:
    if plan.source is not None:
        with transaction.atomic():
            placing.leave(plan.source)
    return Done(text, {"nodeId": step.node_id})


def undoing(step: Step) -> Outcome:
    """The target's engine is stopped and its place given up; the source has served all along."""
    plan = plan_of(step)
    about = at_target(step, plan)
    if Placement.objects.filter(pk=plan.arrival.id).exists():
        view = stopped_or_view(about)
        if view is not None and not starting.late(step, settings().moves_stop_timeout):
            return poll("Stopping the engine that was started.")
    return undone(step)


def undone(step: Step, _: StepFailed | None = None) -> Outcome:
    """The end of an undone move; an engine that could not be asked to stop is one without a place."""
    plan = plan_of(step)
    with transaction.atomic():
        placing.leave(plan.arrival.id)
    return ending(step, f"The model stands on node {plan.source_node} as before.")


def gave_up(step: Step, failure: StepFailed) -> Outcome:
    """The target was away for too long."""
    text = f"{failure.detail} Node {step.node_id} was away for too long."
    return undo(StepFailed(failure.step_code, text, final=True))


def drained_unseen(step: Step, failure: StepFailed) -> Outcome:
    """The source was away for too long to tell what it still answers."""
    return Go(STOPPING_SOURCE, failure.detail)


def never(_: Step, failure: StepFailed) -> Wait:
    """What is waited for as long as it takes."""
    return pause(failure.detail)
