"""Launch a model: (stopping →) checking → (downloading →) starting → waiting → done, or cancelling → the end.

Weights that the model's repository has and its node lacks are downloaded first, then everything is checked again. A
restart begins at `stopping`. A cancelled launch stops its engine before it ends. Each shard of a replica has a launch
of its own; they meet at rank 0, and when one ends without success so do the others (`jobs.steps.shards`).
"""

from datetime import timedelta

from agent.wire.downloads import DownloadState
from agent.wire.errors import AgentCode
from agent.wire.instances import LIVE_STATES, InstanceState, InstanceView
from jobs.base import (
    Audit,
    Cancelled,
    Display,
    Done,
    Go,
    Kind,
    Outcome,
    Run,
    Stage,
    Step,
    StoredFailure,
    Wait,
)
from jobs.errors import StepFailed
from jobs.states import FAILED
from jobs.steps import artifacts, instances, restarts, shards, starting
from jobs.steps.artifacts import StoredSpec, TransferState
from jobs.steps.instances import CountsTurns, engine_of
from jobs.steps.shards import ShardInput, ShardState
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from models_app import events, intents, registry
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


class LaunchInput(ShardInput):
    """`generation` is the placement's at the request; `force` skips the node's memory check."""

    generation: int | None = None
    force: bool = False
    restart: bool = False


class LaunchState(CountsTurns, TransferState, ShardState):
    """`download` are weights that the node lacks; `why` is the failure for which the launch is cancelled."""

    key: str = ""
    config_hash: str | None = None
    download: StoredSpec | None = None
    restarted: bool = False
    gave_up: bool = False
    why: StoredFailure | None = None


LaunchStep = Step[LaunchInput, LaunchState]
LaunchRun = Run[LaunchInput, LaunchState]


def _patient(stage: LaunchRun) -> LaunchRun:
    """Return `stage` with a limit for a node that is away."""

    def run(step: LaunchStep) -> Outcome:
        try:
            return stage(step)
        except StepFailed as failure:
            if failure.step_code == AgentCode.MODELS_ROOT_CHANGED:
                text = "The model starts once the disk is there; stop the model to prevent that."
                raise StepFailed(failure.step_code, f"{failure.detail} {text}", final=True) from failure
            late = clock.now() - artifacts.last_contact(step) > settings().launch_timeout
            if failure.final or failure.step_code not in KEEPS_DESIRED or not late:
                raise
            text = "The model starts once the node works again; stop the model to prevent that."
            raise StepFailed(failure.step_code, f"{failure.detail} {text}", final=True) from failure

    return run


def _joint(stage: LaunchRun) -> LaunchRun:
    """Return `stage` with an end for shards whose start failed elsewhere: no shard continues alone."""

    def run(step: LaunchStep) -> Outcome:
        other = None if step.cancel_requested else shards.failure_of_other(step)
        if other is None:
            return stage(step)
        changed = step.state.changed(why=other.why) if other.why else step.state.changed(gave_up=True)
        return Go(CANCELLING, other.text, changed)

    return _patient(run)


def _stopping(step: LaunchStep) -> Outcome:
    if step.cancel_requested:
        return Go(CANCELLING, "Stopping the engine.")
    instances.placement_of(engine_of(step), step.model_id)
    view = _stop(step)
    if view is None:
        instances.refresh(step.node_id)
        return Go(CHECKING, "The engine has stopped.")
    allowed = settings().stop_timeout + timedelta(seconds=instances.STOP_GRACE_SECONDS)
    if starting.late(step, allowed):
        text = f"The engine did not stop within {allowed.total_seconds():.0f} s; it still runs."
        raise StepFailed("stop_timeout", text, final=True, lines=view.last_lines)
    return Wait(_LOOK_SECONDS, {"text": "Stopping the engine."})


def _checking(step: LaunchStep) -> Outcome:
    if step.cancel_requested:
        return Cancelled("Cancelled before anything was started.")
    engine = engine_of(step)
    placement = instances.placement_of(engine, step.model_id)
    node = starting.ready_node(step.node_id)
    if placement.shards > 1 and shards.of(step.input) is None:
        raise StepFailed("invalid_state", "A shard never starts alone; start the model.", final=True)
    if placement.generation != step.input.generation:
        raise StepFailed("placement_changed", "The placement changed meanwhile; start the model again.", final=True)
    starting.check_capabilities(placement, node)
    view = instances.view_in(instances.refresh(step.node_id), engine)
    if view is None or view.state not in LIVE_STATES:
        # Once is enough: the node itself reports files that are still missing then, at the start.
        lacking = artifacts.lacking(step.node_id, placement.model) if step.state.download is None else None
        if lacking is not None:
            text = f"Node {step.node_id} lacks the weights: downloading {lacking.repository}."
            return Go(DOWNLOADING, text, step.state.changed(download=lacking))
        return Go(STARTING, f"Node {step.node_id} is ready to start it.")
    if view.state == InstanceState.STOPPING:
        return Wait(_LOOK_SECONDS, {"text": "Waiting for the engine to stop."})
    if view.operation_id.startswith(f"{step.operation_id}:"):
        return Go(WAITING, "Accepted by the node.", step.state.changed(key=view.operation_id))
    if shards.of(step.input) is not None:
        return Go(STOPPING, "An engine of an earlier start runs there: stopping it.")
    current = registry.config_hash(placement.model, placement, node)
    if (view.config_hash, view.generation) != (current, placement.generation):
        text = "An engine with other settings runs there; restart the model to apply the current ones."
        raise StepFailed("invalid_state", text, final=True)
    return Go(WAITING, "It runs already; waiting until it is ready.", step.state.changed(key=view.operation_id))


def _downloading(step: LaunchStep) -> Outcome:
    download_id = f"{step.operation_id}-weights"
    if step.cancel_requested:
        artifacts.cancel(step.node_id, download_id, f"{step.key()}:cancel")
        return Go(CANCELLING, "The download is cancelled.")
    instances.placement_of(engine_of(step), step.model_id)
    spec = step.state.download
    if spec is None:
        return Go(CHECKING, "There is nothing to download.")
    view, changes = artifacts.follow(step, download_id, spec)
    state = step.state.changed(**changes)
    if view.state is DownloadState.READY:
        return Go(CHECKING, f"The weights are in the folder {view.folder}.", state)
    return Wait(artifacts.LOOK_SECONDS, artifacts.progress(view), state)


def _starting(step: LaunchStep) -> Outcome:
    if step.cancel_requested:
        # An earlier try of this stage may have reached the node: make sure.
        return Go(CANCELLING, "Stopping the engine, if it was started.")
    engine = engine_of(step)
    placement = instances.placement_of(engine, step.model_id)
    node = starting.ready_node(step.node_id)
    spec = starting.spec_for(placement, node, force=step.input.force)
    if shards.of(step.input) is not None:
        if why := shards.waits_for(step, STARTING, WAITING):
            return Wait(_LOOK_SECONDS, {"text": why})
        rendezvous = shards.rendezvous(step, placement)
        if rendezvous is None:
            return Wait(_LOOK_SECONDS, {"text": "Waiting until shard 0 has chosen the rendezvous port."})
        spec = spec.model_copy(update={"rendezvous": rendezvous})
    key = starting.key_of(step, spec)
    try:
        view = instances.launch(engine, spec, key)
    except AgentRefused as refusal:
        if refusal.agent_code == AgentCode.INSTANCE_EXISTS:
            return Go(CHECKING, "An engine runs there already; checking it.")
        return starting.refused(step, step.node_id, refusal, settings().launch_timeout)
    return Go(WAITING, "Accepted by the node.", step.state.changed(key=key, config_hash=view.config_hash))


def _waiting(step: LaunchStep) -> Outcome:
    if step.cancel_requested:
        return Go(CANCELLING, "Stopping the engine.")
    engine = engine_of(step)
    placement = instances.placement_of(engine, step.model_id)
    allowed = max(settings().launch_timeout, timedelta(seconds=placement.model.start_timeout_seconds)) + _MARGIN
    view = instances.look(engine)
    if view is None:
        text = f"Node {step.node_id!r} no longer knows the engine that was starting there."
        raise StepFailed("instance_lost", text, final=True)
    if view.state in instances.FINAL:
        instances.refresh(step.node_id)
        if view.state == InstanceState.LOST and shards.of(step.input) is not None:
            text = "The machine rebooted while the shard was starting: all shards start again."
            raise StepFailed("unavailable", text, final=True)
        if view.state == InstanceState.LOST and not step.state.restarted:
            again = step.state.changed(restarted=True, turns=instances.next_turn(step, STARTING))
            return Go(CHECKING, "The machine rebooted: starting the engine again.", again)
        if view.ready_at is not None and shards.of(step.input) is None:
            # It served before anybody looked: the start was good, and its end is for `restarts`, or for who stopped it.
            return _ready(view, " It has ended since.")
        raise starting.died(view)
    if view.state == InstanceState.READY:
        if missing := shards.are_missing(step):
            text = f"This shard is ready; waiting for {missing} more of the replica."
            return Wait(_LOOK_SECONDS, {"text": text}, step.state.changed(up=True))
        instances.refresh(step.node_id)
        return _ready(view)
    if starting.late(step, allowed):
        detail = f"The engine was not ready within {allowed.total_seconds():.0f} s."
        why = StoredFailure(code="start_timeout", detail=detail)
        return Go(CANCELLING, "The start takes too long: stopping the engine.", step.state.changed(why=why))
    state = step.state.changed(up=False) if shards.of(step.input) else None
    return Wait(_LOOK_SECONDS, starting.progress(view), state)


def _ready(view: InstanceView, also: str = "") -> Done:
    took = f" after {view.start_seconds:.1f} s" if view.start_seconds is not None else ""
    return Done(f"Ready{took}.{also}", {"startSeconds": view.start_seconds})


def _cancelling(step: LaunchStep) -> Outcome:
    if _stop(step) is not None:
        return Wait(_LOOK_SECONDS, {"text": "Stopping the engine."})
    instances.refresh(step.node_id)
    if step.state.why is not None:
        raise step.state.why.as_error()
    return Cancelled("The engine has stopped.")


def _stop(step: LaunchStep) -> InstanceView | None:
    return instances.stop(engine_of(step), step.key(instances.turn_of(step)))


def _update_desired(step: LaunchStep, outcome: str, code: str) -> None:
    """A model that failed to start is not tried for ever: someone fixes the cause, and starts it again."""
    placement = Placement.objects.filter(pk=step.target_id).first() if outcome == FAILED else None
    if placement is None:
        return
    if step.actor == restarts.ENGINE_RESTARTS and code in restarts.RETRIED:
        # The loop of restarts counts this one, and decides.
        events.changed(placement.model_id)
    elif code == starting.STOPPED_MEANWHILE:
        # Stopped on its node, as by the end of the last run of the master: the model stays desired, and the start that
        # `resume.autostart` requested for it is carried out.
        events.changed(placement.model_id)
    elif code not in KEEPS_DESIRED:
        apply.set_desired_stopped(placement)
    elif placement.desired == RUNNING:
        intents.ask([placement], RunningIntent.ASKED)


def _path(step: LaunchStep) -> tuple[str, ...]:
    names = [CHECKING, STARTING, WAITING]
    if step.stage == DOWNLOADING or step.state.download is not None:
        names.insert(0, DOWNLOADING)
    if step.stage == STOPPING or step.input.restart:
        names.insert(0, STOPPING)
    return tuple(names)


KIND = Kind(
    name=NAME,
    title="Start",
    concurrency_group="run",
    Input=LaunchInput,
    State=LaunchState,
    stages=(
        Stage(STOPPING, "Stop the engine", _joint(_stopping)),
        Stage(CHECKING, "Check the node", _joint(_checking)),
        Stage(DOWNLOADING, "Download the weights", _joint(_downloading)),
        Stage(STARTING, "Start the engine", _joint(_starting)),
        Stage(WAITING, "Load the model", _joint(_waiting)),
        Stage(CANCELLING, "Stop the engine", _cancelling, aside=True),
    ),
    audit=Audit(lambda step: "model.restart" if step.input.restart else "model.start"),
    on_end=_update_desired,
    display=Display(heading=lambda step: "Restart" if step.input.restart else "", path=_path, last="Ready"),
)
