"""Starts of engines within a move: on the target, and on the source again when the move is undone."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState, InstanceView
from jobs import instances, starting
from jobs.base import Outcome, Step, Wait
from jobs.errors import StepFailed
from jobs.kinds.move.plan import STARTING_TARGET, poll, since
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from models_app import registry
from models_app.models import Placement
from nodes.errors import AgentRefused

_MARGIN = timedelta(seconds=60)
ORDERED = "ordered"
"""In an operation's state: when the node took the order to start the target's engine."""


def placement_of(about: Step) -> Placement:
    """The placement that `about` names. StepFailed (final) when it is gone."""
    return instances.placement_of(about)


def order(about: Step, placement: Placement, *, draining: bool = False) -> Outcome:
    """Ask the node to start the engine: another look once it took the order, or a later try.

    With `draining`, on a node that takes no new work, too. StepFailed, final when it is refused for good or was for
    too long, and any MirbadError of a node or a definition that cannot be used.
    """
    node = starting.ready_node(about, draining=draining)
    starting.check_capabilities(about, placement, node)
    spec = registry.launch_spec(placement, node)
    try:
        instances.launch(about, spec, starting.key_of(about, spec))
    except AgentRefused as refusal:
        if refusal.agent_code == AgentCode.INSTANCE_EXISTS and is_ours(about, instances.look(about)):
            return _taken(about)
        return starting.refused(about, refusal, settings().moves_start_target_timeout, tries=None)
    return _taken(about)


def is_ours(about: Step, view: InstanceView | None) -> bool:
    """Whether this operation had the engine of `view` started."""
    return view is not None and view.operation_id.startswith(f"{about.operation_id}:")


def _taken(about: Step) -> Wait:
    _, note = since(about, ORDERED)
    return poll("The node has taken the order.", note)


def is_ordered(step: Step) -> bool:
    """Whether the node took the order."""
    return bool(step.state.get(ORDERED))


def once_more(step: Step, view: InstanceView | None) -> dict[str, Any] | None:
    """State with which an engine is ordered again that a reboot of its machine ended: once in a move, else None."""
    if view is None or view.state != InstanceState.LOST or step.state.get("restarted"):
        return None
    turns = instances.next_turn(replace(step, stage=STARTING_TARGET))
    return {"restarted": True, ORDERED: None, **turns}


def not_ready(about: Step, placement: Placement) -> Wait | None:
    """Another look at an engine that starts; None once it is ready and seen so. StepFailed (final) when it never is."""
    view = instances.look(about)
    if view is None:
        text = f"Node {about.node_id!r} no longer knows the engine that it was starting."
        raise StepFailed("instance_lost", text, final=True)
    if (state := once_more(about, view)) is not None:
        return poll("The machine was restarted meanwhile: starting it again.", state)
    if view.state in instances.FINAL:
        instances.refresh(about)
        raise starting.died(view)
    if view.state == InstanceState.READY:
        instances.refresh(about)
        return None
    allowed = max(settings().launch_timeout, timedelta(seconds=placement.model.start_timeout_seconds)) + _MARGIN
    if clock.now() - datetime.fromisoformat(str(about.state[ORDERED])) > allowed:
        text = f"The engine was not ready within {allowed.total_seconds():.0f} s."
        raise StepFailed("start_timeout", text, final=True, lines=view.last_lines)
    shown = dict(starting.progress(view))
    return poll(str(shown.pop("text")), None, **shown)
