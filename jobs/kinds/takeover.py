"""Take the fleet over: probing → storing → claiming → done. A continuation does the same for one node.

Every node is asked first whom it obeys, the epoch above all of those is stored, and only then are the nodes that
answered asked to obey it. Those that did not answer wait (`nodes.reachability.left_out`).
"""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from django.db import transaction

from agent.wire.fence import Claim, FenceView
from audit import log as audit_log
from jobs.base import Cancelled, Done, Go, Kind, Outcome, Step, Wait
from jobs.errors import StepFailed
from jobs.states import CANCELLED, FAILED, SUCCEEDED
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import MirbadError
from nodes import fencing, reachability
from nodes.errors import MasterFenced, NodeIncompatible, NodePendingTakeover
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
"""Nodes asked at the same moment. Each may take ten seconds, and a step has to end within its lease."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one node said. `epoch` is that of the claim it holds; None when it holds none or did not say."""

    node_id: str
    epoch: int | None
    error: MirbadError | None = None


def _probing(step: Step) -> Outcome:
    if step.cancel_requested:
        return Cancelled("Ended before anything was changed.")
    _require_asked_here(step)
    ours = fencing.present()
    state = dict(step.state)
    if state.get("since") != ours.to_wire():
        # The first look, or this master's claim changed since: what was learnt under another one is dropped.
        state = {"since": ours.to_wire(), "left": _wanted(step), "highest": ours.epoch, "answered": [], "silent": []}
    batch, left = state["left"][:AT_ONCE], state["left"][AT_ONCE:]
    for answer in _together([_ask(node_id) for node_id in batch]):
        if step.kind == CONTINUE:
            _require_as_confirmed(step, answer)
        state["highest"] = max(state["highest"], answer.epoch or 0)
        state["answered" if answer.error is None else "silent"].append(answer.node_id)
    state["left"] = left
    if left:
        return Wait(0.0, {"text": "Asking every node whom it obeys."}, state)
    counts = f"Nodes that answered: {len(state['answered'])}, that did not: {len(state['silent'])}."
    return Go(STORING, f"{counts} Highest epoch: {state['highest']}.", state)


def _storing(step: Step) -> Outcome:
    _require_asked_here(step)
    claim = fencing.made_by(step.operation_id)
    if claim is None:
        if step.cancel_requested:
            return Cancelled("Ended before anything was changed.")
        since = Claim.model_validate(step.state["since"])
        epoch = int(step.state["highest"]) + 1
        with transaction.atomic():
            claim = fencing.advance(since, epoch, step.operation_id, takeover=step.kind == NAME)
            if claim is not None and step.kind == NAME:
                reachability.left_out(step.state["silent"], step.operation_id, epoch)
    if claim is None:
        return Go(PROBING, "This master's claim changed meanwhile; asking the nodes again.", {"since": None})
    approved = Node.objects.filter(lifecycle=APPROVED, pk__in=step.state["answered"])
    left = sorted(approved.values_list("pk", flat=True))
    return Go(CLAIMING, f"Epoch {claim.epoch} is stored.", {"claim": claim.to_wire(), "left": left, "claimed": []})


def _claiming(step: Step) -> Outcome:
    claim = Claim.model_validate(step.state["claim"])
    if not fencing.stands(claim):
        raise _overtaken(fencing.fenced_reason() or "This master's claim changed meanwhile.")
    batch, left = step.state["left"][:AT_ONCE], step.state["left"][AT_ONCE:]
    claimed, silent = list(step.state["claimed"]), list(step.state["silent"])
    for answer in _together([_claim(step, node_id, claim) for node_id in batch]):
        if isinstance(answer.error, NodePendingTakeover | MasterFenced):
            raise _overtaken(answer.error.detail)
        if answer.error is None:
            reachability.claimed(answer.node_id, claim)
            claimed.append(answer.node_id)
        else:
            log.info("a node could not be claimed", node=answer.node_id, reason=answer.error.detail)
            with transaction.atomic():
                reachability.left_out([answer.node_id], _takeover_id(step), claim.epoch)
            silent.append(answer.node_id)
    known = {"left": left, "claimed": claimed, "silent": silent}
    if left:
        return Wait(0.0, {"text": "Asking the nodes to obey this master."}, known)
    if step.kind == CONTINUE and not claimed:
        raise StepFailed("node_offline", f"Node {step.node_id} stopped answering; it still waits.", final=True)
    waiting = f" Waiting until they come back: {', '.join(silent)}." if silent else ""
    result = {"takeoverId": _takeover_id(step), "epoch": claim.epoch, "claimed": claimed, "pending": silent}
    return Done(f"Nodes that obey epoch {claim.epoch} now: {', '.join(claimed) or 'none'}.{waiting}", result)


def _wanted(step: Step) -> list[str]:
    if step.kind == CONTINUE:
        return [step.node_id]
    return sorted(Node.objects.not_revoked().values_list("pk", flat=True))


def _takeover_id(step: Step) -> str:
    return step.operation_id if step.kind == NAME else str(step.input["takeoverId"])


def _require_asked_here(step: Step) -> None:
    """Whoever asked meant the installation they looked at; in a copy of its data the wish is nobody's."""
    if step.input["installation"] != fencing.bound_to():
        text = "This was asked of the installation that the data was copied from. Ask here, if it is stopped."
        raise StepFailed("invalid_state", text, final=True)


def _require_as_confirmed(step: Step, answer: _Answer) -> None:
    """A continuation is for the claim that the person saw, and for no later one."""
    if answer.error is not None:
        raise StepFailed(answer.error.code, f"{answer.error.detail} Continue once it answers.", final=True)
    if answer.epoch != step.input["agentEpoch"]:
        text = f"Node {step.node_id} holds epoch {answer.epoch} now, not {step.input['agentEpoch']} as you confirmed."
        raise StepFailed("invalid_state", f"{text} Is another master running? Look again.", final=True)


def _overtaken(reason: str) -> StepFailed:
    text = f"{reason} Another master is at work at this moment: stop it, then take over again."
    return StepFailed("master_fenced", text, final=True)


def _together(asked: list[Coroutine[Any, Any, _Answer]]) -> list[_Answer]:
    async def gather() -> list[_Answer]:
        return list(await asyncio.gather(*asked))

    return pools.loop_thread().run(gather())


async def _ask(node_id: str) -> _Answer:
    try:
        info = await health.aprobe(node_id)
    except NodeIncompatible as error:
        # It may have said whom it obeys all the same; `aprobe` has kept that.
        return _Answer(node_id, await client.in_thread(lambda: _last_epoch(node_id)), error)
    except MirbadError as error:
        return _Answer(node_id, None, error)
    return _Answer(node_id, info.held_claim.epoch if info.held_claim else None)


async def _claim(step: Step, node_id: str, claim: Claim) -> _Answer:
    key = f"{step.key()}:{node_id}"
    try:
        await client.acall(node_id, "PUT", "fence", claim, answer=FenceView, operation_id=key)
    except MirbadError as error:
        return _Answer(node_id, None, error)
    return _Answer(node_id, claim.epoch)


def _last_epoch(node_id: str) -> int | None:
    return Node.objects.filter(pk=node_id).values_list("held_epoch", flat=True).first()


def _ended(step: Step, outcome: str, code: str) -> None:
    results = {SUCCEEDED: "succeeded", FAILED: "failed", CANCELLED: "failed"}
    audit_log.record(
        "fencing.takeover" if step.kind == NAME else "fencing.continue",
        Actor(step.actor),
        node_id=step.node_id,
        operation_id=step.operation_id,
        result=results[outcome],
        error_code=code or ("cancelled" if outcome == CANCELLED else ""),
        detail=_asked_by(step.input),
    )
    if outcome == SUCCEEDED and (one_time := step.input.get("oneTimeId")):
        fencing.note_done(str(one_time))


def _asked_by(asked: Mapping[str, Any]) -> str:
    return f"Asked by the {asked['source']}." if asked.get("source") else ""


_STAGES = {PROBING: _probing, STORING: _storing, CLAIMING: _claiming}

KIND = Kind(name=NAME, lane="identity", stages=_STAGES, ended=_ended, while_fenced=True)
CONTINUATION = Kind(name=CONTINUE, lane="identity", stages=_STAGES, ended=_ended, while_fenced=True)
