"""Starts of engines within a move: on the target, and on the source again when the move is undone."""

from datetime import timedelta

from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState, InstanceView
from jobs.base import Outcome, Wait
from jobs.errors import StepFailed
from jobs.kinds.move.plan import STARTING_TARGET, MoveState, MoveStep, poll
from jobs.steps import instances, starting
from jobs.steps.instances import Engine
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from models_app import registry
from models_app.models import Placement
from nodes.errors import AgentRefused

_MARGIN = timedelta(seconds=60)


def request(step: MoveStep, engine: Engine, placement: Placement, *, draining: bool = False) -> Outcome:
    """Request the start of the engine: another look once the node has accepted it, or a later try.

    With `draining`, on a draining node, too. StepFailed, final when it is refused for good or was for too long, and any
    MirbadError of a node or a definition that cannot be used.
    """
    node = starting.ready_node(engine.node_id, draining=draining)
    starting.check_capabilities(placement, node)
    # The source that a person started in spite of its fit starts so again; the target is judged by itself.
    forced = placement.confirmed_config_hash == registry.config_hash(placement.model, placement, node)
    spec = starting.spec_for(placement, node, force=forced)
    try:
        instances.launch(engine, spec, starting.key_of(step, spec))
    except AgentRefused as refusal:
        if refusal.agent_code == AgentCode.INSTANCE_EXISTS and is_ours(step, instances.look(engine)):
            return _accepted(step)
        allowed = settings().moves_start_target_timeout
        return starting.refused(step, engine.node_id, refusal, allowed, tries=None)
    return _accepted(step)


def is_ours(step: MoveStep, view: InstanceView | None) -> bool:
    """Return whether this operation started the engine of `view`."""
    return view is not None and view.operation_id.startswith(f"{step.operation_id}:")


def _accepted(step: MoveStep) -> Wait:
    return poll("Accepted by the node.", step.state.changed(ordered=step.state.ordered or clock.now()))


def once_more(step: MoveStep, view: InstanceView | None) -> MoveState | None:
    """Return the state for a second start after a reboot of the machine ended the engine: once a move, else None."""
    if view is None or view.state != InstanceState.LOST or step.state.restarted:
        return None
    return step.state.changed(restarted=True, ordered=None, turns=instances.next_turn(step, STARTING_TARGET))


def not_ready(step: MoveStep, engine: Engine, placement: Placement) -> Wait | None:
    """Return another look at a starting engine; None once it is observed ready. StepFailed (final) when it fails."""
    view = instances.look(engine)
    if view is None:
        text = f"Node {engine.node_id!r} no longer knows the engine that was starting there."
        raise StepFailed("instance_lost", text, final=True)
    if (state := once_more(step, view)) is not None:
        return poll("The machine rebooted: starting the engine again.", state)
    if view.state in instances.FINAL:
        instances.refresh(engine.node_id)
        raise starting.died(view)
    if view.state == InstanceState.READY:
        instances.refresh(engine.node_id)
        return None
    allowed = max(settings().launch_timeout, timedelta(seconds=placement.model.start_timeout_seconds)) + _MARGIN
    if step.state.ordered is not None and clock.now() - step.state.ordered > allowed:
        text = f"The engine was not ready within {allowed.total_seconds():.0f} s."
        raise StepFailed("start_timeout", text, final=True, lines=view.last_lines)
    shown = dict(starting.progress(view))
    return poll(str(shown.pop("text")), None, **shown)
