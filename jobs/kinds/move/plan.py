"""What a move is to do, frozen when it was asked for, and what its stages share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from agent.wire.downloads import DownloadSpec
from agent.wire.instances import InstanceView
from jobs import instances
from jobs.base import Cancelled, Go, Outcome, Stage, Step, Wait
from jobs.errors import StepFailed
from mirbad.kernel import clock
from mirbad.kernel.actor import system
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from models_app.models import Placement
from models_app.placement.handover import Arrival
from nodes import queries as node_queries
from nodes.errors import MasterFenced

NAME = "move"
HANDOVER = "handover"
STOP_FIRST = "stop-first"

DOWNLOADING = "downloading"
STARTING_TARGET = "starting-target"
TARGET_READY = "target-ready"
PLACEMENT_COMMITTED = "placement-committed"
DRAINING_SOURCE = "draining-source"
STOPPING_SOURCE = "stopping-source"
SOURCE_STOPPED = "source-stopped"
UNDOING = "undoing"

IN_ORDER = {
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
MAY_CANCEL = {
    HANDOVER: frozenset({DOWNLOADING, STARTING_TARGET, TARGET_READY}),
    STOP_FIRST: frozenset({DOWNLOADING, STOPPING_SOURCE}),
}

ACTOR = system("move")
# A node in one of these states may come back: it is waited for.
AWAY = frozenset({"node_offline", "node_incompatible", "node_pending_takeover", "unavailable"})


@dataclass(frozen=True, slots=True)
class Plan:
    """`source` is the placement that is moved, None for a model that stands nowhere; `arrival` is where it comes to.

    `running` says whether it is to run there. `specs` are sets that were pinned with a token, by the source's position.
    """

    mode: str
    source: UUID | None
    source_node: str
    arrival: Arrival
    running: bool
    specs: Mapping[int, DownloadSpec]


def plan_of(step: Step) -> Plan:
    """What the operation of `step` is to do."""
    return read(step.input, step.model_id, step.node_id)


def read(frozen: Mapping[str, Any], model_id: str, node_id: str) -> Plan:
    """The plan in an operation's input."""
    arrival = Arrival(
        id=UUID(frozen["target"]),
        model_id=model_id,
        node_id=node_id,
        gpu_uuids=tuple(frozen["gpuUuids"]),
        generation=int(frozen["generation"]),
    )
    return Plan(
        mode=frozen["mode"],
        source=UUID(frozen["source"]) if frozen["source"] else None,
        source_node=frozen["sourceNode"],
        arrival=arrival,
        running=bool(frozen["running"]),
        specs={int(at): DownloadSpec.model_validate(spec) for at, spec in frozen["specs"].items()},
    )


def download_id(operation_id: str, at: int) -> str:
    """The id of the download of the source at that place."""
    return f"{operation_id}-weights-{at}"


def at_source(step: Step, plan: Plan) -> Step:
    """`step` as calls about the source's instance want it. Only with a source."""
    return replace(step, target_id=str(plan.source), node_id=plan.source_node)


def at_target(step: Step, plan: Plan) -> Step:
    """`step` as calls about the target's instance want it."""
    return replace(step, target_id=str(plan.arrival.id))


def placement_at(pk: UUID | None) -> Placement | None:
    """The placement with its model; None when it is gone, or there never was one."""
    return Placement.objects.select_related("model").filter(pk=pk).first() if pk is not None else None


def why_away(node_id: str) -> str:
    """Why models on a node cannot be asked for anything now; "" when they can. A node that is gone for good counts."""
    try:
        node_queries.require_serving(node_id)
    except MirbadError as error:
        return error.detail
    return ""


def poll(text: str, state: Mapping[str, Any] | None = None, **progress: Any) -> Wait:
    """Look again after the poll interval."""
    return Wait(settings().moves_poll_interval.total_seconds(), {"text": text, **progress}, state or {})


def pause(text: str, state: Mapping[str, Any] | None = None) -> Wait:
    """Look again after the retry interval: a node is away."""
    return Wait(settings().moves_retry_interval.total_seconds(), {"text": text, "paused": True}, state or {})


def undo(why: StepFailed | None = None) -> Go:
    """Go back to how it was: as a failure for `why`, or because someone asked."""
    if why is None:
        return Go(UNDOING, "Asked to end: putting everything back.")
    told = {"code": why.step_code, "detail": why.detail, "lines": list(why.lines)}
    return Go(UNDOING, f"{why.detail} Putting everything back.", {"why": told})


def ending(step: Step, text: str) -> Outcome:
    """The end of an undone move. StepFailed (final) when it was undone for a reason."""
    why = step.state.get("why")
    if isinstance(why, dict):
        raise StepFailed(str(why["code"]), f"{why['detail']} {text}", final=True, lines=why.get("lines", ()))
    return Cancelled(text)


def for_good(error: MirbadError) -> StepFailed | None:
    """`error` as the failure that ends what is tried; None when a later try may fare better."""
    if isinstance(error, StepFailed):
        return error if error.final else None
    if error.retryable or isinstance(error, MasterFenced):
        return None
    return StepFailed(error.code, error.detail, final=True)


def stopped_or_view(about: Step) -> InstanceView | None:
    """Ask for a stop of the instance that `about` names, then look; None once nothing of it runs. StepFailed."""
    asked = instances.stop(about, f"{about.key()}:{about.target_id}")
    view = instances.look(about) if asked is not None else None
    return None if view is None or view.state in instances.FINAL else view


def since(step: Step, name: str) -> tuple[datetime, dict[str, str]]:
    """When `name` began, now if it was not noted yet; and the state that notes it."""
    began = str(step.state.get(name) or clock.now().isoformat())
    return datetime.fromisoformat(began), {name: began}


def patient(stage: Stage, limit: Callable[[], timedelta], give_up: Callable[[Step, StepFailed], Outcome]) -> Stage:
    """`stage`, waiting for a node that is away; once it is away for longer than `limit`, what `give_up` makes of it."""

    def run(step: Step) -> Outcome:
        away = f"away-{step.stage}"
        try:
            outcome = stage(step)
        except StepFailed as failure:
            if failure.final or failure.step_code not in AWAY:
                raise
            began, note = since(step, away)
            if clock.now() - began > limit():
                return give_up(step, failure)
            return pause(failure.detail, note)
        if step.state.get(away) and isinstance(outcome, Go | Wait):
            return replace(outcome, state={**outcome.state, away: None})
        return outcome

    return run
