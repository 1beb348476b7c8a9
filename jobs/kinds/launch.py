"""Launch a model: (stopping →) checking → (downloading →) starting → waiting → done, or cancelling → the end.

Weights that the model's repository has and its node lacks are downloaded first, then all is checked again. A restart
begins at `stopping`. Whoever cancels gets the engine stopped before the operation ends. Each shard of a replica has a
launch of its own; they meet at rank 0, and when one ends without success so do the others (`jobs.shards`).
"""

from dataclasses import replace
from datetime import timedelta

from agent.wire.downloads import DownloadSpec, DownloadState
from agent.wire.errors import AgentCode
from agent.wire.instances import LIVE_STATES, InstanceState, InstanceView
from audit import log as audit_log
from jobs import artifacts, instances, shards, starting
from jobs.base import Cancelled, Done, Go, Kind, Outcome, Stage, Step, Wait
from jobs.errors import StepFailed
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings
from models_app import intents, registry
from models_app.models import Placement, RunningIntent
from models_app.placement import apply
from models_app.states import RUNNING
from nodes.errors import AgentRefused

NAME = "launch"
CHECKING = "checking"
STARTING = "starting"
WAITING = "waiting"
DOWNLOADING = "downloading"
STOPPING = "stopping"
CANCELLING = "cancelling"

_LOOK_SECONDS = 0.7
_MARGIN = timedelta(seconds=60)
KEEPS_DESIRED = instances.KEEPS_DESIRED


def _patient(stage: Stage) -> Stage:
    """A node that cannot be worked with is waited for, but not for ever."""

    def run(step: Step) -> Outcome:
        try:
            return stage(step)
        except StepFailed as failure:
            late = clock.now() - artifacts.last_contact(step) > settings().launch_timeout
            if failure.final or failure.step_code not in KEEPS_DESIRED or not late:
                raise
            text = "The model is started once the node works again; stop it if you do not want that."
            raise StepFailed(failure.step_code, f"{failure.detail} {text}", final=True) from failure

    return run


def _together(stage: Stage) -> Stage:
    """Of a replica's shards none goes on alone."""

    def run(step: Step) -> Outcome:
        trouble = None if step.cancel_requested else shards.trouble(step)
        if trouble is None:
            return stage(step)
        return Go(CANCELLING, trouble.text, {"why": dict(trouble.why)} if trouble.why else {"gaveUp": True})

    return _patient(run)


def _stopping(step: Step) -> Outcome:
    if step.cancel_requested:
        return Go(CANCELLING, "Stopping the engine.")
    instances.placement_of(step)
    view = _stopped_or_view(step)
    if view is None:
        instances.refresh(step)
        return Go(CHECKING, "The engine has stopped.")
    allowed = settings().stop_timeout + timedelta(seconds=instances.STOP_GRACE_SECONDS)
    if starting.late(step, allowed):
        text = f"The engine did not end within {allowed.total_seconds():.0f} s; it still runs."
        raise StepFailed("stop_timeout", text, final=True, lines=view.last_lines)
    return Wait(_LOOK_SECONDS, {"text": "Stopping the engine."})


def _checking(step: Step) -> Outcome:
    if step.cancel_requested:
        return Cancelled("Ended before anything was started.")
    placement = instances.placement_of(step)
    node = starting.ready_node(step)
    if placement.shards > 1 and shards.of(step.input) is None:
        raise StepFailed("invalid_state", "A shard never starts alone; start the model.", final=True)
    if placement.generation != step.input.get("generation"):
        raise StepFailed("placement_changed", "The placement changed meanwhile; start the model again.", final=True)
    starting.check_capabilities(step, placement, node)
    view = instances.view_in(instances.refresh(step), step)
    if view is None or view.state not in LIVE_STATES:
        # Once is enough: what is then still missing is said by the node when it is to start.
        if "download" not in step.state and (spec := artifacts.lacking(step, placement.model)) is not None:
            text = f"Node {step.node_id} lacks the weights: downloading {spec.repository}."
            return Go(DOWNLOADING, text, {"download": spec.to_wire()})
        return Go(STARTING, f"Node {step.node_id} is ready to start it.")
    if view.state == InstanceState.STOPPING:
        return Wait(_LOOK_SECONDS, {"text": "Waiting for the engine that ends."})
    if view.operation_id.startswith(f"{step.operation_id}:"):
        return Go(WAITING, "The node has taken the order.", {"key": view.operation_id})
    if shards.of(step.input) is not None:
        return Go(STOPPING, "An engine of an earlier start runs there: stopping it.")
    current = registry.config_hash(placement.model, placement, node)
    if (view.config_hash, view.generation) != (current, placement.generation):
        text = "An engine with other settings runs there; restart the model to apply the present ones."
        raise StepFailed("invalid_state", text, final=True)
    return Go(WAITING, "It runs already; waiting until it is ready.", {"key": view.operation_id})


def _downloading(step: Step) -> Outcome:
    download_id = f"{step.operation_id}-weights"
    if step.cancel_requested:
        artifacts.cancel(step, download_id, f"{step.key()}:cancel")
        return Go(CANCELLING, "The download has ended.")
    instances.placement_of(step)
    view, state = artifacts.follow(step, download_id, DownloadSpec.model_validate(step.state["download"]))
    if view.state is DownloadState.READY:
        return Go(CHECKING, f"The weights are in the folder {view.folder}.", state)
    return Wait(artifacts.LOOK_SECONDS, artifacts.progress(view), state)


def _starting(step: Step) -> Outcome:
    if step.cancel_requested:
        # Whether an earlier try of this stage reached the node is unknown: make sure.
        return Go(CANCELLING, "Stopping what may have been started.")
    placement = instances.placement_of(step)
    node = starting.ready_node(step)
    spec = registry.launch_spec(placement, node, force=bool(step.input.get("force")))
    if shards.of(step.input) is not None:
        if why := shards.waits_for(step, STARTING, WAITING):
            return Wait(_LOOK_SECONDS, {"text": why})
        meeting = shards.rendezvous(step, placement)
        if meeting is None:
            return Wait(_LOOK_SECONDS, {"text": "Waiting until shard 0 has chosen where to meet."})
        spec = spec.model_copy(update={"rendezvous": meeting})
    key = starting.key_of(step, spec)
    try:
        view = instances.launch(step, spec, key)
    except AgentRefused as refusal:
        if refusal.agent_code == AgentCode.INSTANCE_EXISTS:
            return Go(CHECKING, "An engine runs there already; looking at it.")
        return starting.refused(step, refusal, settings().launch_timeout)
    return Go(WAITING, "The node has taken the order.", {"key": key, "configHash": view.config_hash})


def _waiting(step: Step) -> Outcome:
    if step.cancel_requested:
        return Go(CANCELLING, "Stopping the engine.")
    placement = instances.placement_of(step)
    allowed = max(settings().launch_timeout, timedelta(seconds=placement.model.start_timeout_seconds)) + _MARGIN
    view = instances.look(step)
    if view is None:
        text = f"Node {step.node_id!r} no longer knows the engine that it was starting."
        raise StepFailed("instance_lost", text, final=True)
    if view.state in instances.FINAL:
        instances.refresh(step)
        if view.state == InstanceState.LOST and shards.of(step.input) is not None:
            text = "The machine was restarted while the shard started: all shards start anew."
            raise StepFailed("unavailable", text, final=True)
        if view.state == InstanceState.LOST and not step.state.get("restarted"):
            turns = instances.next_turn(replace(step, stage=STARTING))
            return Go(CHECKING, "The machine was restarted meanwhile: starting again.", {"restarted": True, **turns})
        raise starting.died(view)
    if view.state == InstanceState.READY:
        if missing := shards.are_missing(step):
            text = f"Its part is up; waiting for {missing} more of the replica."
            return Wait(_LOOK_SECONDS, {"text": text}, {shards.UP: True})
        instances.refresh(step)
        took = f" after {view.start_seconds:.1f} s" if view.start_seconds is not None else ""
        return Done(f"Ready{took}.", {"startSeconds": view.start_seconds})
    if starting.late(step, allowed):
        why = {"code": "start_timeout", "detail": f"The engine was not ready within {allowed.total_seconds():.0f} s."}
        return Go(CANCELLING, "It takes too long: stopping the engine.", {"why": why})
    return Wait(_LOOK_SECONDS, starting.progress(view), {shards.UP: False} if shards.of(step.input) else {})


def _cancelling(step: Step) -> Outcome:
    view = _stopped_or_view(step)
    if view is not None:
        return Wait(_LOOK_SECONDS, {"text": "Stopping the engine."})
    instances.refresh(step)
    why = step.state.get("why")
    if isinstance(why, dict):
        raise StepFailed(str(why["code"]), str(why["detail"]), final=True, lines=why.get("lines", ()))
    return Cancelled("The engine has stopped.")


def _stopped_or_view(step: Step) -> InstanceView | None:
    """Ask for a stop, then look; None once nothing of it runs."""
    asked = instances.stop(step, step.key(instances.turn_of(step)))
    view = instances.look(step) if asked is not None else None
    return None if view is None or view.state in instances.FINAL else view


def _ended(step: Step, outcome: str, code: str) -> None:
    action = "model.restart" if step.input.get("restart") else "model.start"
    results = {SUCCEEDED: "succeeded", FAILED: "failed", CANCELLED: "failed"}
    audit_log.record(
        action,
        Actor(step.actor),
        node_id=step.node_id,
        model_id=step.model_id,
        operation_id=step.operation_id,
        result=results[outcome],
        error_code=code or ("cancelled" if outcome == CANCELLED else ""),
    )
    # A model that failed to start is not tried for ever: someone looks, changes something, and starts it again.
    placement = Placement.objects.filter(pk=step.target_id).first() if outcome == FAILED else None
    if placement is None:
        return
    if code not in KEEPS_DESIRED:
        apply.want_stopped(placement)
    elif placement.desired == RUNNING:
        intents.ask([placement], RunningIntent.ASKED)


KIND = Kind(
    name=NAME,
    lane="run",
    stages={
        STOPPING: _together(_stopping),
        CHECKING: _together(_checking),
        DOWNLOADING: _together(_downloading),
        STARTING: _together(_starting),
        WAITING: _together(_waiting),
        CANCELLING: _cancelling,
    },
    ended=_ended,
)
