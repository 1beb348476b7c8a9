"""Rotate the fleet's CA: Started → AgentsTrusting → MasterReissued → AgentsRotating → Closing → Closed.

The stage of the rotation is in its row (`nodes.pki.rotation`); each pass checks the nodes that have not passed the
stage yet, and goes on when every node was observed to have passed. A node that does not answer is waited for and named;
only a person can decide to leave it behind. Certificates of nodes are rotated by operations of their own, which this
one requests.
"""

import asyncio
from datetime import timedelta

import structlog
from django.db import transaction

from jobs.base import (
    Audit,
    Cancelled,
    Display,
    Done,
    Go,
    Kind,
    NoData,
    NodeRequest,
    OperationData,
    Outcome,
    Stage,
    Step,
    Wait,
)
from jobs.errors import StepFailed
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.states import SUCCEEDED
from jobs.steps.ca_trust import Check, CheckResult, Pass, closing, rolling_back, rotating, trusting
from jobs.steps.keychange import RotateCertInput
from mirbad.kernel import clock
from mirbad.kernel.errors import MirbadError
from models_app import routing
from nodes.errors import MasterFenced
from nodes.link import pools
from nodes.models import CaRotation
from nodes.pki import members, rotation
from nodes.pki.members import Member
from nodes.states import (
    CA_AGENTS_ROTATING,
    CA_AGENTS_TRUSTING,
    CA_CLOSED,
    CA_CLOSED_EARLY,
    CA_CLOSING,
    CA_MASTER_REISSUED,
    CA_ROLLED_BACK,
    CA_ROLLING_BACK,
    CA_STARTED,
)

log = structlog.get_logger(__name__)

NAME = "ca-rotation"
TARGET_KIND, TARGET = "fleet", "ca"
AT_ONCE = pools.AT_ONCE
"""Nodes checked at the same moment; a step has to end within its lease."""
PAUSE_SECONDS = 5.0
SETTLE_SECONDS = 2.0
"""Within this time every process that calls nodes has read which certificate to show, before nodes refuse the other."""
NODE_SECONDS = 20.0
RETRY_AFTER = timedelta(seconds=30)
PATIENCE = timedelta(seconds=20)
"""The time for which an early close tries an online node: a single failed call proves little."""
_NAMED = 5
_ROTATE, _ROTATE_STAGE = "rotate-cert", "requesting"

_WORDS = {
    CA_STARTED: "The new CA is created.",
    CA_AGENTS_TRUSTING: "Every node is to trust both CAs.",
    CA_MASTER_REISSUED: "The new CA signs; the master shows its new certificate.",
    CA_AGENTS_ROTATING: "Every node is to get a certificate under the new CA.",
    CA_CLOSING: "Every node is to trust the new CA alone.",
    CA_ROLLING_BACK: "Rolling back to the old CA.",
}


class CaRotationInput(OperationData):
    """`flag` names the flag file of the request; `rotation_id` is an open rotation that the operation takes up."""

    flag: str = ""
    rotation_id: str = ""


CaRotationStep = Step[CaRotationInput, NoData]


def rotation_id(step: CaRotationStep) -> str:
    """Return the rotation that an operation drives: the one that it began, or the one that it took up."""
    return step.input.rotation_id or step.operation_id


def _step(step: CaRotationStep) -> Outcome:
    """Do one pass. No error in it ends the operation: an open rotation has to be brought to an end."""
    found = CaRotation.objects.get(pk=rotation_id(step))
    at = found.stage
    try:
        return _pass(step, found)
    except MirbadError as error:
        found.refresh_from_db()
        if found.finished_at is None and found.stage != at:
            return Go(found.stage, _WORDS[found.stage])  # another request changed it meanwhile
        raise StepFailed(error.code, error.detail, final=False) from error


def _pass(step: CaRotationStep, found: CaRotation) -> Outcome:
    if found.finished_at is not None:
        return _over(found)
    if step.cancel_requested and found.stage in rotation.CAN_ROLL_BACK:
        _move(found, CA_ROLLING_BACK)
    if found.stage != step.stage:
        return Go(found.stage, _WORDS[found.stage])
    if following := _AT_ONCE_ON_TO.get(found.stage):
        _move(found, following)
        return Go(following, _WORDS[following])
    early = SETTLE_SECONDS - (clock.now() - found.stage_since).total_seconds()
    if found.stage in _ENDING and early > 0:
        return Wait(early, {"text": "Every process of the master shows the certificate that stays."})
    requests = _check_nodes(found)
    known = members.read(found)
    members.update_conditions(found, known)
    waiting = _waiting(found, known, {request.node_id for request in requests})
    if waiting:
        return Wait(_pause(known, found), {"text": _status_text(found, known, waiting)}, requests=requests)
    return _advance(found, known)


def _check_nodes(found: CaRotation) -> tuple[NodeRequest, ...]:
    """Check the nodes that have not passed, the longest untried first; return the other operations that they need."""
    left = [member for member in members.read(found) if not member.has_passed(found.stage)]
    left.sort(key=lambda member: member.record.tried_at or found.started_at)
    batch = left[:AT_ONCE]
    if not batch:
        return ()
    check, context = _CHECKS[found.stage], _context(found)
    if found.stage in _TELLS_OF_NEW:
        members.note_given_ca(found, [member.node_id for member in batch])
    requests = []
    for member, result in zip(batch, _together(check, context, batch), strict=True):
        members.note(member, passed=found.stage if result.passed else "", problem=result.problem)
        if result.needs_certificate:
            text = f"CA rotation {found.pk} needs another certificate for the node."
            data = RotateCertInput(base=member.spki, ca_rotation=found.pk)
            requests.append(NodeRequest(_ROTATE, _ROTATE_STAGE, member.node_id, text, "node.rotate-cert", data))
    return tuple(requests)


def _context(found: CaRotation) -> Pass:
    order = rotation.order()
    before = found.stage in rotation.BEFORE_REISSUE
    back = found.stage == CA_ROLLING_BACK
    since = clock.now() - RETRY_AFTER
    ended = Operation.objects.filter(kind=_ROTATE, finished_at__gte=since).exclude(outcome=SUCCEEDED)
    return Pass(
        rotation=found,
        order=order,
        bundle_hash=rotation.bundle_hash(order.ca_bundle),
        goal=found.old_sha256 if back else found.new_sha256,
        spare=rotation.new_identity(found) if before or back else rotation.old_identity(found),
        withdrawn=rotation.withdrawn_identity(found),
        busy=_busy(),
        failed_lately=frozenset(ended.values_list("node_id_text", flat=True)),
    )


def _busy() -> frozenset[str]:
    """Return the nodes with an open operation on their identity: their key may change at any moment."""
    rows = unfinished().filter(concurrency_group="identity", target_kind="node")
    return frozenset(rows.values_list("target_id", flat=True))


def _together(check: Check, context: Pass, batch: list[Member]) -> list[CheckResult]:
    async def one(member: Member) -> CheckResult:
        try:
            async with asyncio.timeout(NODE_SECONDS):
                return await check(context, member)
        except TimeoutError:
            return CheckResult(problem="It takes too long to answer.")
        except MasterFenced:
            raise
        except MirbadError as error:
            return CheckResult(problem=error.detail)

    return pools.together([one(member) for member in batch])


def _waiting(found: CaRotation, known: list[Member], requested: set[str]) -> list[Member]:
    """Return the nodes for which the stage cannot end yet; `requested` are those that get another certificate now."""
    busy = _busy() | requested
    return [member for member in known if not _allows_next(found, member, busy)]


def _allows_next(found: CaRotation, member: Member, busy: frozenset[str]) -> bool:
    if _is_left_behind(found, member, busy):
        return True
    if member.node_id in busy and found.stage != CA_AGENTS_TRUSTING:
        # Its certificate may be from either CA by now; which one is observed when that operation has ended.
        return False
    if member.has_passed(found.stage):
        return True
    # A node that waits for approval accepts no command; its certificate is of the CA that stays, so it is not lost.
    goal = found.old_sha256 if found.stage == CA_ROLLING_BACK else found.new_sha256
    return found.stage in _ENDING and member.pending and member.issuer == goal


def _is_left_behind(found: CaRotation, member: Member, busy: frozenset[str] | set[str]) -> bool:
    """Return whether a person closed the rotation without the nodes that do not answer, and this one does not."""
    if found.close_asked_at is None or found.stage not in _MAY_LEAVE or (member.node_id in busy and member.online):
        return False
    since = max(found.close_asked_at, found.stage_since)
    return member.was_tried_since(since + PATIENCE if member.online else since)


def _advance(found: CaRotation, known: list[Member]) -> Outcome:
    if found.stage not in _ENDING:
        following = _ON_TO[found.stage]
        _move(found, following)
        return Go(following, _WORDS[following])
    with transaction.atomic():
        stranded, leftover = members.settle(found, known)
        if found.stage == CA_ROLLING_BACK:
            _move(found, CA_ROLLED_BACK)
        else:
            early = stranded or (leftover and found.close_asked_at is not None)
            _move(found, CA_CLOSED_EARLY if early else CA_CLOSED)
    return _over(found)


def _move(found: CaRotation, target: str) -> None:
    with transaction.atomic():
        # From this commit on the gateway shows another certificate, or accepts other ones.
        routing.bump()
        rotation.move(found, target)


def _over(found: CaRotation) -> Outcome:
    left = dict(found.nodes.exclude(outcome="").values_list("node_id", "outcome"))
    stranded = sorted(node_id for node_id, outcome in left.items() if outcome == members.STRANDED)
    words = f"CA rotation {found.pk} ended {found.stage}."
    if stranded:
        words = f"{words} To be re-paired: {', '.join(stranded)}."
    if found.stage not in (CA_CLOSED, CA_CLOSED_EARLY):
        return Cancelled(words)
    return Done(words, {"stage": found.stage, "stranded": stranded})


def _status_text(found: CaRotation, known: list[Member], waiting: list[Member]) -> str:
    named = [f"{member.node_id} ({member.record.problem or 'not tried yet'})" for member in waiting[:_NAMED]]
    more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
    counts = f"{len(known) - len(waiting)} of {len(known)} nodes"
    return f"{_WORDS[found.stage]} {counts}. Waiting for {', '.join(named)}{more}."


def _pause(known: list[Member], found: CaRotation) -> float:
    """Return the pause until the next pass: short while nodes were not checked yet in this stage."""
    fresh = any(not member.was_tried_since(found.stage_since) for member in known if not member.has_passed(found.stage))
    return 0.2 if fresh else PAUSE_SECONDS


def _stage_of(step: CaRotationStep) -> str:
    found = CaRotation.objects.filter(pk=rotation_id(step)).first()
    return found.stage if found is not None else ""


_AT_ONCE_ON_TO = {CA_STARTED: CA_AGENTS_TRUSTING, CA_MASTER_REISSUED: CA_AGENTS_ROTATING}
_ON_TO = {CA_AGENTS_TRUSTING: CA_MASTER_REISSUED, CA_AGENTS_ROTATING: CA_CLOSING}
_TELLS_OF_NEW = frozenset({CA_AGENTS_TRUSTING, CA_AGENTS_ROTATING})
_ENDING = frozenset({CA_CLOSING, CA_ROLLING_BACK})
_MAY_LEAVE = frozenset({CA_AGENTS_ROTATING, CA_CLOSING, CA_ROLLING_BACK})
_CHECKS: dict[str, Check] = {
    CA_AGENTS_TRUSTING: trusting,
    CA_AGENTS_ROTATING: rotating,
    CA_CLOSING: closing,
    CA_ROLLING_BACK: rolling_back,
}

KIND = Kind(
    name=NAME,
    title="CA rotation",
    concurrency_group="identity",
    Input=CaRotationInput,
    State=NoData,
    stages=(
        Stage(CA_STARTED, "Create the new CA", _step),
        Stage(CA_AGENTS_TRUSTING, "Nodes trust both CAs", _step),
        Stage(CA_MASTER_REISSUED, "Show the new certificate", _step),
        Stage(CA_AGENTS_ROTATING, "Nodes get certificates", _step),
        Stage(CA_CLOSING, "Nodes drop the old CA", _step),
        Stage(CA_ROLLING_BACK, "Roll back to the old CA", _step, aside=True),
    ),
    # A rotation that was rolled back has done what was requested of it.
    audit=Audit("pki.ca-rotation", target=_stage_of, cancelled_is_failed=False),
    display=Display(subject=lambda _: "of the fleet"),
)
