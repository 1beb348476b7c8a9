"""Take the fleet over: probing → storing → claiming → done. A continuation does the same for one node.

First every node reports the claim that it obeys, then the epoch above all of those is stored, and only then are the
nodes that answered claimed with it. The others wait (`nodes.reachability.left_out`).
"""

from dataclasses import dataclass
from typing import Annotated

import structlog
from django.db import transaction
from pydantic import PlainSerializer

from agent.wire.fence import MAX_EPOCH, Claim, FenceView, well_formed
from jobs.base import Audit, Cancelled, Display, Done, Go, Kind, OperationData, Outcome, Stage, Step, Wait
from jobs.errors import StepFailed
from jobs.states import SUCCEEDED
from mirbad.kernel.errors import MirbadError
from nodes import fencing, reachability
from nodes.errors import NodeIncompatible, NodePendingTakeover
from nodes.link import client, health, pools
from nodes.models import Node
from nodes.states import APPROVED

log = structlog.get_logger(__name__)

NAME = "takeover"
CONTINUE = "continuation"
PROBING = "probing"
STORING = "storing"
CLAIMING = "claiming"

AT_ONCE = 100
"""Nodes called at the same moment. Each may take ten seconds, and a step has to end within its lease."""

StoredClaim = Annotated[Claim, PlainSerializer(Claim.to_wire)]
"""A claim, stored as the message to agents."""


class TakeoverInput(OperationData):
    """`installation` is the one that it was requested of, `source` the flag file or option that requested it.

    `key` tells one request of the configuration from another; `one_time_id` is remembered once it has succeeded.
    `takeover_id` and `agent_epoch` are the takeover that a continuation continues, and the epoch that was confirmed.
    """

    installation: str = ""
    source: str = ""
    key: str = ""
    one_time_id: str = ""
    takeover_id: str = ""
    agent_epoch: int | None = None


class TakeoverState(OperationData):
    """`since` is the claim at the first call, `left` the nodes still to be called in this stage.

    `highest` is the highest epoch that a node reported; `claim` is the one that was stored.
    """

    since: StoredClaim | None = None
    left: tuple[str, ...] = ()
    highest: int = 0
    answered: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    claim: StoredClaim | None = None
    claimed: tuple[str, ...] = ()


TakeoverStep = Step[TakeoverInput, TakeoverState]


@dataclass(frozen=True, slots=True)
class _ClaimResult:
    """The response of one node. `epoch` is that of the claim it holds; None when it holds or reported none."""

    node_id: str
    epoch: int | None
    error: MirbadError | None = None


def _probing(step: TakeoverStep) -> Outcome:
    if step.cancel_requested:
        return Cancelled("Cancelled before anything was changed.")
    _require_asked_here(step)
    ours = fencing.present()
    state = step.state
    if state.since != ours:
        # The first call, or this master's claim changed since: responses under another claim are dropped.
        state = state.changed(since=ours, left=_nodes(step), highest=ours.epoch, answered=(), silent=())
    batch, left = state.left[:AT_ONCE], state.left[AT_ONCE:]
    highest, answered, silent = state.highest, list(state.answered), list(state.silent)
    results = pools.together([_probe(node_id) for node_id in batch], AT_ONCE)
    if not left and (again := fencing.believed_since([*silent, *_failed(results)], ours)):
        # Nodes that were doubted until another one said the same.
        silent = [node_id for node_id in silent if node_id not in again]
        results = [result for result in results if result.node_id not in again]
        results += pools.together([_probe(node_id) for node_id in again], AT_ONCE)
    for result in results:
        if step.kind == CONTINUE:
            _require_as_confirmed(step, result)
        highest = max(highest, result.epoch or 0)
        (answered if result.error is None else silent).append(result.node_id)
    state = state.changed(left=left, highest=highest, answered=answered, silent=silent)
    if left:
        return Wait(0.0, {"text": "Reading the claim of every node."}, state)
    counts = f"Nodes that answered: {len(answered)}, that did not: {len(silent)}."
    return Go(STORING, f"{counts} Highest epoch: {highest}.", state)


def _storing(step: TakeoverStep) -> Outcome:
    _require_asked_here(step)
    claim = fencing.made_by(step.operation_id)
    if claim is None:
        if step.cancel_requested:
            return Cancelled("Cancelled before anything was changed.")
        since, epoch = step.state.since, step.state.highest + 1
        if since is None:
            return Go(PROBING, "Reading the claim of every node.")
        if epoch > MAX_EPOCH:
            raise StepFailed("invalid_state", f"No epoch is left above {step.state.highest}.", final=True)
        with transaction.atomic():
            claim = fencing.advance(since, epoch, step.operation_id, takeover=step.kind == NAME)
            if claim is not None and step.kind == NAME:
                reachability.left_out(step.state.silent, step.operation_id, epoch)
    if claim is None:
        return Go(
            PROBING, "This master's claim changed meanwhile; reading the nodes again.", step.state.changed(since=None)
        )
    approved = Node.objects.filter(lifecycle=APPROVED, pk__in=step.state.answered)
    left = sorted(approved.values_list("pk", flat=True))
    state = step.state.changed(claim=claim, left=left, claimed=())
    return Go(CLAIMING, f"Epoch {claim.epoch} is stored.", state)


def _claiming(step: TakeoverStep) -> Outcome:
    _require_asked_here(step)
    claim = step.state.claim
    if claim is None or not fencing.is_current(claim):
        raise _overtaken(fencing.fenced_reason() or "This master's claim changed meanwhile.")
    batch, left = step.state.left[:AT_ONCE], step.state.left[AT_ONCE:]
    claimed, silent = list(step.state.claimed), list(step.state.silent)
    results = pools.together([_claim(step, node_id, claim) for node_id in batch], AT_ONCE)
    if not fencing.is_current(claim):
        raise _overtaken(fencing.fenced_reason() or "This master's claim changed meanwhile.")
    for result in results:
        if result.error is None:
            reachability.claimed(result.node_id, claim)
            claimed.append(result.node_id)
            continue
        log.info("a node could not be claimed", node=result.node_id, reason=result.error.detail)
        if not isinstance(result.error, NodePendingTakeover):
            with transaction.atomic():
                reachability.left_out([result.node_id], _takeover_id(step), claim.epoch)
        elif step.kind == CONTINUE:
            raise StepFailed("node_pending_takeover", result.error.detail, final=True)
        # One node that obeys another master all the same stays out; two of them fence this master.
        silent.append(result.node_id)
    if left:
        state = step.state.changed(left=left, claimed=claimed, silent=silent)
        return Wait(0.0, {"text": "Claiming the nodes."}, state)
    if step.kind == CONTINUE and not claimed:
        raise StepFailed("node_offline", f"Node {step.node_id} stopped answering; it still waits.", final=True)
    waiting = f" Waiting until they return: {', '.join(silent)}." if silent else ""
    summary = {"takeoverId": _takeover_id(step), "epoch": claim.epoch, "claimed": claimed, "pending": silent}
    return Done(f"Nodes that obey epoch {claim.epoch} now: {', '.join(claimed) or 'none'}.{waiting}", summary)


def _failed(results: list[_ClaimResult]) -> list[str]:
    return [result.node_id for result in results if result.error is not None]


def _nodes(step: TakeoverStep) -> list[str]:
    if step.kind == CONTINUE:
        return [step.node_id]
    return sorted(Node.objects.not_revoked().values_list("pk", flat=True))


def _takeover_id(step: TakeoverStep) -> str:
    return step.operation_id if step.kind == NAME else step.input.takeover_id


def _require_asked_here(step: TakeoverStep) -> None:
    """Pass in the installation of the request; a copy of its data must not repeat it. StepFailed (final)."""
    if step.input.installation != fencing.bound_to():
        text = (
            "This was requested of the installation that the data was copied from. If that is stopped, request it here."
        )
        raise StepFailed("invalid_state", text, final=True)


def _require_as_confirmed(step: TakeoverStep, result: _ClaimResult) -> None:
    """Pass for the claim that the person confirmed, and for no later one. StepFailed (final)."""
    if result.error is not None:
        raise StepFailed(result.error.code, f"{result.error.detail} Continue once it answers.", final=True)
    if result.epoch != step.input.agent_epoch:
        text = f"Node {step.node_id} holds epoch {result.epoch} now, not {step.input.agent_epoch} as you confirmed."
        raise StepFailed("invalid_state", f"{text} Is another master running? Reload and check.", final=True)


def _overtaken(reason: str) -> StepFailed:
    text = f"{reason} Another master is active right now: stop it, then take over again."
    return StepFailed("master_fenced", text, final=True)


async def _probe(node_id: str) -> _ClaimResult:
    try:
        info = await health.aprobe(node_id)
    except NodeIncompatible as error:
        # It may have reported its claim all the same; `aprobe` has stored that.
        return _ClaimResult(node_id, await client.in_thread(lambda: _last_epoch(node_id)), error)
    except MirbadError as error:
        return _ClaimResult(node_id, None, error)
    held = well_formed(info.held_claim)
    return _ClaimResult(node_id, held.epoch if held else None)


async def _claim(step: TakeoverStep, node_id: str, claim: Claim) -> _ClaimResult:
    key = f"{step.key()}:{node_id}"
    try:
        await client.acall(node_id, "PUT", "fence", claim, answer=FenceView, operation_id=key)
    except MirbadError as error:
        return _ClaimResult(node_id, None, error)
    return _ClaimResult(node_id, claim.epoch)


def _last_epoch(node_id: str) -> int | None:
    epoch = Node.objects.filter(pk=node_id).values_list("held_epoch", flat=True).first()
    return None if epoch is None or epoch > fencing.reach(fencing.present()) else epoch


def _note_done(step: TakeoverStep, outcome: str, _: str) -> None:
    if outcome == SUCCEEDED and step.input.one_time_id:
        fencing.note_done(step.input.one_time_id)


def _requested_by(step: TakeoverStep, _: str) -> str:
    return f"Requested by the {step.input.source}." if step.input.source else ""


_STAGES = (
    Stage(PROBING, "Read the nodes' claims", _probing),
    Stage(STORING, "Store the epoch", _storing),
    Stage(CLAIMING, "Claim the nodes", _claiming),
)

KIND = Kind(
    name=NAME,
    title="Takeover",
    concurrency_group="identity",
    Input=TakeoverInput,
    State=TakeoverState,
    stages=_STAGES,
    audit=Audit("fencing.takeover", detail=_requested_by),
    on_end=_note_done,
    while_fenced=True,
    display=Display(subject=lambda _: "of the fleet"),
)
CONTINUATION = Kind(
    name=CONTINUE,
    title="Continued takeover",
    concurrency_group="identity",
    Input=TakeoverInput,
    State=TakeoverState,
    stages=_STAGES,
    audit=Audit("fencing.continue", detail=_requested_by),
    while_fenced=True,
)
