"""The plan of a move, frozen at the request; its state; and parts that its stages share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from agent.wire.downloads import DownloadSpec
from jobs.base import Cancelled, Go, Moment, OperationData, Outcome, Run, Step, StoredFailure, Wait
from jobs.errors import StepFailed
from jobs.steps.artifacts import StoredSpec, TransferState
from jobs.steps.instances import CountsTurns, Engine
from jobs.steps.moving import HANDOVER, MOVE, STOP_FIRST, MoveInput
from mirbad.kernel import clock
from mirbad.kernel.actor import system
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from models_app.models import Placement
from models_app.placement.relocate import TargetPlacement
from nodes import queries as node_queries
from nodes.errors import MasterFenced

NAME = MOVE

DOWNLOADING = "downloading"
STARTING_TARGET = "starting-target"
TARGET_READY = "target-ready"
PLACEMENT_COMMITTED = "placement-committed"
DRAINING_SOURCE = "draining-source"
STOPPING_SOURCE = "stopping-source"
SOURCE_STOPPED = "source-stopped"
UNDOING = "undoing"

_IN_ORDER = {
    HANDOVER: (
        DOWNLOADING,
        STARTING_TARGET,
        TARGET_READY,
        PLACEMENT_COMMITTED,
        DRAINING_SOURCE,
        STOPPING_SOURCE,
    ),
    STOP_FIRST: (DOWNLOADING, STOPPING_SOURCE, SOURCE_STOPPED, PLACEMENT_COMMITTED, STARTING_TARGET),
}
_MAY_CANCEL = {
    HANDOVER: frozenset({DOWNLOADING, STARTING_TARGET, TARGET_READY}),
    STOP_FIRST: frozenset({DOWNLOADING, STOPPING_SOURCE}),
}

ACTOR = system("move")
# A node in one of these states may return: it is waited for.
AWAY = frozenset({"node_offline", "node_incompatible", "node_pending_takeover", "unavailable"})
_AWAY_KEY = "away-"


class TransferredSet(OperationData):
    """A set of files that the move has downloaded to the target."""

    repository: str
    folder: str
    bytes: int


class MoveState(CountsTurns, TransferState):
    """`at` is the position of the source in transfer, `spec` its files, `brought` the sets that are complete.

    `ordered`: the node accepted the start of the engine then. `stopped`: the move may have stopped an engine that is to
    run. `away` is since when the node of a stage is away, stored as one key per stage. `forced`: the source was given
    up. `why` is the failure for which the move is undone.
    """

    at: int = 0
    spec: StoredSpec | None = None
    brought: tuple[TransferredSet, ...] = ()
    pulls: int = 0
    ordered: Moment | None = None
    restarted: bool = False
    quiet: bool = False
    stopped: bool = False
    stop_since: Moment | None = None
    forced: bool = False
    why: StoredFailure | None = None
    away: Mapping[str, Moment | None] = {}

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "away" in data:
            return data
        away = {key.removeprefix(_AWAY_KEY): value for key, value in data.items() if key.startswith(_AWAY_KEY)}
        return {**data, "away": away} if away else data

    @model_serializer(mode="wrap")
    def _scatter(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        shown: dict[str, Any] = handler(self)
        return {**{f"{_AWAY_KEY}{stage}": since for stage, since in shown.pop("away", {}).items()}, **shown}


MoveStep = Step[MoveInput, MoveState]
MoveRun = Run[MoveInput, MoveState]


@dataclass(frozen=True, slots=True)
class Plan:
    """`source` is the placement that is moved, None for a model that is placed nowhere; `arrival` is the new one.

    `running` is whether it is to run there. `specs` are sets that were pinned with a token, by the source's position.
    """

    mode: str
    source: UUID | None
    source_node: str
    arrival: TargetPlacement
    running: bool
    specs: Mapping[int, DownloadSpec]

    @property
    def source_engine(self) -> Engine:
        """The engine on the source. Only with a source."""
        return Engine(self.source_node, str(self.source))

    @property
    def target_engine(self) -> Engine:
        """The engine on the target."""
        return Engine(self.arrival.node_id, str(self.arrival.id))


def plan_of(step: MoveStep) -> Plan:
    """Return the plan of a move. ValueError without the id of the new placement, which every request writes."""
    data = step.input
    if data.target is None:
        raise ValueError(f"Move {step.operation_id} has no target.")
    arrival = TargetPlacement(
        id=data.target,
        model_id=step.model_id,
        node_id=step.node_id,
        gpu_uuids=data.gpu_uuids,
        generation=data.generation,
    )
    return Plan(
        mode=data.mode,
        source=data.source,
        source_node=data.source_node,
        arrival=arrival,
        running=data.running,
        specs=data.specs,
    )


def path(step: MoveStep) -> tuple[str, ...]:
    """Return the stages that a move passes: without a source nothing stops, a stopped model does not start."""
    skipped: set[str] = set()
    if step.input.source is None:
        skipped |= {STOPPING_SOURCE, SOURCE_STOPPED}
    if not step.input.running:
        skipped.add(STARTING_TARGET)
    return tuple(stage for stage in _IN_ORDER.get(step.input.mode, ()) if stage not in skipped)


def why_no_cancel(step: MoveStep) -> str:
    """Return the reason why a move cannot be cancelled any more; "" when it can."""
    if step.stage in _MAY_CANCEL.get(step.input.mode, frozenset()):
        return ""
    if step.stage == UNDOING:
        return "The move is being undone already."
    return "The model is on the target already; move it back instead."


def download_id(operation_id: str, at: int) -> str:
    """Return the id of the download of the source at a position."""
    return f"{operation_id}-weights-{at}"


def placement_at(pk: UUID | None) -> Placement | None:
    """Return a placement with its model; None when it is gone, or there never was one."""
    return Placement.objects.select_related("model").filter(pk=pk).first() if pk is not None else None


def why_away(node_id: str) -> str:
    """Return the reason why models on a node cannot be commanded now, also for a removed node; "" when they can."""
    try:
        node_queries.require_serving(node_id)
    except MirbadError as error:
        return error.detail
    return ""


def poll(text: str, state: MoveState | None = None, **progress: Any) -> Wait:
    """Look again after the poll interval."""
    return Wait(settings().moves_poll_interval.total_seconds(), {"text": text, **progress}, state)


def pause(text: str, state: MoveState | None = None) -> Wait:
    """Look again after the retry interval: a node is away."""
    return Wait(settings().moves_retry_interval.total_seconds(), {"text": text, "paused": True}, state)


def undo(step: MoveStep, why: StepFailed | None = None) -> Go:
    """Return to the state before the move: as a failure for `why`, or on request."""
    if why is None:
        return Go(UNDOING, "Cancelled: undoing the move.")
    return Go(UNDOING, f"{why.detail} Undoing the move.", step.state.changed(why=StoredFailure.of(why)))


def ending(step: MoveStep, text: str) -> Outcome:
    """Return the end of an undone move. StepFailed (final) when it was undone for a failure."""
    if step.state.why is not None:
        raise step.state.why.as_error(text)
    return Cancelled(text)


def for_good(error: MirbadError) -> StepFailed | None:
    """Return `error` as the failure that ends the try; None when a later try may succeed."""
    if isinstance(error, StepFailed):
        return error if error.final else None
    if error.retryable or isinstance(error, MasterFenced):
        return None
    return StepFailed(error.code, error.detail, final=True)


def stop_key(step: MoveStep, engine: Engine) -> str:
    """Return the idempotency key of the stop of an engine in this stage."""
    return f"{step.key()}:{engine.instance_id}"


def patient(
    stage: MoveRun, limit: Callable[[], timedelta], give_up: Callable[[MoveStep, StepFailed], Outcome]
) -> MoveRun:
    """Return `stage` with a wait for a node that is away; after `limit` of that, the outcome is that of `give_up`."""

    def run(step: MoveStep) -> Outcome:
        since = step.state.away.get(step.stage)
        try:
            outcome = stage(step)
        except StepFailed as failure:
            if failure.final or failure.step_code not in AWAY:
                raise
            began = since or clock.now()
            if clock.now() - began > limit():
                return give_up(step, failure)
            return pause(failure.detail, _away(step, step.state, began))
        if since is not None and isinstance(outcome, Go | Wait):
            state = outcome.state if isinstance(outcome.state, MoveState) else step.state
            return replace(outcome, state=_away(step, state, None))
        return outcome

    return run


def _away(step: MoveStep, state: MoveState, since: datetime | None) -> MoveState:
    return state.changed(away={**state.away, step.stage: since})
