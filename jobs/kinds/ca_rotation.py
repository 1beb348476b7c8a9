"""Another CA for the fleet: Started → AgentsTrusting → MasterReissued → AgentsRotating → Closing → Closed.

Where the rotation stands is in its row (`nodes.pki.rotation`); each pass looks at the nodes that have not passed the
stage yet, and moves on when every node was observed to have. A node that does not answer is waited for and named; only
a person can say that it is left behind. Certificates of nodes are changed by operations of their own, which are asked
for here.
"""

import asyncio
from datetime import timedelta

import structlog
from django.db import transaction

from audit import log as audit_log
from jobs.base import Ask, Cancelled, Done, Go, Kind, Outcome, Step, Wait
from jobs.errors import StepFailed
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.states import FAILED, SUCCEEDED
from jobs.trusting import Found, Look, Pass, closing, rolling_back, rotating, trusting
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
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
AT_ONCE = 50
"""Nodes looked at in the same moment; a step has to end within its lease."""
PAUSE_SECONDS = 5.0
SETTLE_SECONDS = 2.0
"""Every process that calls nodes reads within this time which certificate to show, before a node refuses the other."""
NODE_SECONDS = 20.0
ASK_AGAIN = timedelta(seconds=30)
PATIENCE = timedelta(seconds=20)
"""So long is a node tried that is online, before an early close leaves it behind: one call that failed says little."""
_NAMED = 5
_ROTATE, _ROTATE_STAGE = "rotate-cert", "requesting"

_WORDS = {
    CA_STARTED: "The new CA is made.",
    CA_AGENTS_TRUSTING: "Telling every node to trust both CAs.",
    CA_MASTER_REISSUED: "The new CA signs; the master shows its new certificate.",
    CA_AGENTS_ROTATING: "Giving every node a certificate under the new CA.",
    CA_CLOSING: "Telling every node to trust the new CA alone.",
    CA_ROLLING_BACK: "Going back to the old CA.",
}


def rotation_id(step: Step) -> str:
    """The rotation that an operation drives: the one that it began, or the one that it took up from another."""
    return str(step.input.get("rotationId") or step.operation_id)


def _step(step: Step) -> Outcome:
    """One pass. Nothing that goes wrong in it ends the operation: a rotation that is open has to come to an end."""
    found = CaRotation.objects.get(pk=rotation_id(step))
    at = found.stage
    try:
        return _pass(step, found)
    except MirbadError as error:
        found.refresh_from_db()
        if found.finished_at is None and found.stage != at:
            return Go(found.stage, _WORDS[found.stage])  # somebody else moved it meanwhile
        raise StepFailed(error.code, error.detail, final=False) from error


def _pass(step: Step, found: CaRotation) -> Outcome:
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
        return Wait(early, {"text": "Every part of the master shows the certificate that stays."})
    asks = _look_at_nodes(found)
    known = members.read(found)
    members.tell(found, known)
    waiting = _waiting(found, known, {ask.node_id for ask in asks})
    if waiting:
        return Wait(_pause(known, found), {"text": _told(found, known, waiting)}, asks=asks)
    return _go_on(found, known)


def _look_at_nodes(found: CaRotation) -> tuple[Ask, ...]:
    """Look at the nodes that have not passed, those not tried for longest first; what is wanted of other operations."""
    left = [member for member in members.read(found) if not member.has_passed(found.stage)]
    left.sort(key=lambda member: member.record.tried_at or found.started_at)
    batch = left[:AT_ONCE]
    if not batch:
        return ()
    look, context = _LOOKS[found.stage], _context(found)
    if found.stage in _TELLS_OF_NEW:
        members.note_told(found, [member.node_id for member in batch])
    asks = []
    for member, result in zip(batch, _together(look, context, batch), strict=True):
        members.note(member, passed=found.stage if result.passed else "", problem=result.problem)
        if result.ask:
            text = f"CA rotation {found.pk} wants another certificate for the node."
            frozen = {"base": member.spki, "caRotation": found.pk}
            asks.append(Ask(_ROTATE, _ROTATE_STAGE, member.node_id, text, "node.rotate-cert", frozen))
    return tuple(asks)


def _context(found: CaRotation) -> Pass:
    order = rotation.order()
    before = found.stage in rotation.BEFORE_REISSUE
    back = found.stage == CA_ROLLING_BACK
    since = clock.now() - ASK_AGAIN
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
    """Nodes with an open operation on their identity, whose key may change at any moment."""
    rows = unfinished().filter(lane="identity", target_kind="node")
    return frozenset(rows.values_list("target_id", flat=True))


def _together(look: Look, context: Pass, batch: list[Member]) -> list[Found]:
    async def one(member: Member) -> Found:
        try:
            async with asyncio.timeout(NODE_SECONDS):
                return await look(context, member)
        except TimeoutError:
            return Found(problem="It takes too long to answer.")
        except MasterFenced:
            raise
        except MirbadError as error:
            return Found(problem=error.detail)

    async def gather() -> list[Found | BaseException]:
        return await asyncio.gather(*(one(member) for member in batch), return_exceptions=True)

    results: list[Found] = []
    for result in pools.loop_thread().run(gather()):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


def _waiting(found: CaRotation, known: list[Member], asked: set[str]) -> list[Member]:
    """The nodes for whose sake the stage cannot end yet; `asked` are those that were just given something to do."""
    busy = _busy() | asked
    return [member for member in known if not _lets_go_on(found, member, busy)]


def _lets_go_on(found: CaRotation, member: Member, busy: frozenset[str]) -> bool:
    if _is_left_behind(found, member, busy):
        return True
    if member.node_id in busy and found.stage != CA_AGENTS_TRUSTING:
        # Its certificate may come from either CA by now; what it will show is seen when that has ended.
        return False
    if member.has_passed(found.stage):
        return True
    # A node that waits for approval cannot be told; its certificate is of the CA that stays, so it is not lost.
    goal = found.old_sha256 if found.stage == CA_ROLLING_BACK else found.new_sha256
    return found.stage in _ENDING and member.pending and member.issuer == goal


def _is_left_behind(found: CaRotation, member: Member, busy: frozenset[str] | set[str]) -> bool:
    """Whether a person said that the rotation closes without those that do not answer, and this one does not."""
    if found.close_asked_at is None or found.stage not in _MAY_LEAVE or (member.node_id in busy and member.online):
        return False
    since = max(found.close_asked_at, found.stage_since)
    return member.was_tried_since(since + PATIENCE if member.online else since)


def _go_on(found: CaRotation, known: list[Member]) -> Outcome:
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
        # The gateway shows another certificate, or accepts other ones, from this commit on.
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


def _told(found: CaRotation, known: list[Member], waiting: list[Member]) -> str:
    named = [f"{member.node_id} ({member.record.problem or 'not tried yet'})" for member in waiting[:_NAMED]]
    more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
    counts = f"{len(known) - len(waiting)} of {len(known)} nodes"
    return f"{_WORDS[found.stage]} {counts}. Waiting for {', '.join(named)}{more}."


def _pause(known: list[Member], found: CaRotation) -> float:
    """Not long while there are nodes that were not looked at yet in this stage, or whose certificate is being made."""
    fresh = any(not member.was_tried_since(found.stage_since) for member in known if not member.has_passed(found.stage))
    return 0.2 if fresh else PAUSE_SECONDS


def _ended(step: Step, outcome: str, code: str) -> None:
    found = CaRotation.objects.filter(pk=rotation_id(step)).first()
    audit_log.record(
        "pki.ca-rotation",
        Actor(step.actor),
        operation_id=step.operation_id,
        target=found.stage if found is not None else "",
        result="failed" if outcome == FAILED else "succeeded",
        error_code=code,
    )


_AT_ONCE_ON_TO = {CA_STARTED: CA_AGENTS_TRUSTING, CA_MASTER_REISSUED: CA_AGENTS_ROTATING}
_ON_TO = {CA_AGENTS_TRUSTING: CA_MASTER_REISSUED, CA_AGENTS_ROTATING: CA_CLOSING}
_TELLS_OF_NEW = frozenset({CA_AGENTS_TRUSTING, CA_AGENTS_ROTATING})
_ENDING = frozenset({CA_CLOSING, CA_ROLLING_BACK})
_MAY_LEAVE = frozenset({CA_AGENTS_ROTATING, CA_CLOSING, CA_ROLLING_BACK})
_LOOKS: dict[str, Look] = {
    CA_AGENTS_TRUSTING: trusting,
    CA_AGENTS_ROTATING: rotating,
    CA_CLOSING: closing,
    CA_ROLLING_BACK: rolling_back,
}

KIND = Kind(name=NAME, lane="identity", stages=dict.fromkeys(_WORDS, _step), ended=_ended)
