"""What a pass of a CA rotation does with one node: look, tell, and look again. Every look is a whole request.

A handshake of TLS 1.3 that succeeds says nothing of our own certificate, so a node has accepted one only when it
answered, and refused one only when it hung up on it and answers to another.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent.wire.capability import AgentInfo
from agent.wire.enroll import MasterSpki
from agent.wire.pki import PkiView, TrustOrder
from mirbad.kernel.ids import new_operation_id
from nodes.errors import NodeTurnedAway
from nodes.link import client
from nodes.link.client import T
from nodes.models import CaRotation
from nodes.pki.members import Member
from nodes.pki.tls import TlsIdentity

_CALL_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class Found:
    """What one look at a node led to. `ask` wants another certificate for it."""

    passed: bool = False
    problem: str = ""
    ask: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """What every look of one pass needs."""

    rotation: CaRotation
    order: TrustOrder
    bundle_hash: str
    goal: str
    spare: TlsIdentity
    """The certificate that the master does not show now: the new one before it was reissued, the old one after."""
    withdrawn: TlsIdentity
    busy: frozenset[str]
    failed_lately: frozenset[str]


Look = Callable[[Pass, Member], Awaitable[Found]]


async def trusting(context: Pass, member: Member) -> Found:
    """Both CAs are loaded, and a whole request under the new certificate is answered."""
    if await _holds(context, member, None) and await _holds(context, member, context.spare):
        return Found(passed=True)
    if member.pending:
        return Found(problem="It waits for approval and trusts the old CA alone: approve or reject it.")
    await _tell(context, member, None)
    if await _holds(context, member, None) and await _holds(context, member, context.spare):
        return Found(passed=True)
    return Found(problem="It was told to trust both CAs and does not use them yet.")


async def rotating(context: Pass, member: Member) -> Found:
    """A handshake with the certificate under the wanted CA is seen, and its key is the pinned one."""
    if not await _holds(context, member, None):
        await _heal(context, member)
    if member.issuer != context.goal:
        return _wants_certificate(context, member)
    if await _holds(context, member, None):
        return Found(passed=True)
    return Found(problem="It does not trust what it was told to trust.")


async def closing(context: Pass, member: Member) -> Found:
    """It refuses a certificate of the CA that goes, for the very key that it knows, and answers to the present one."""
    if member.issuer != context.goal:
        return Found(problem="It has no certificate under the CA that stays.")
    if not await _holds(context, member, None):
        if member.pending:
            return Found(problem="It waits for approval; it is told once it is approved.")
        await _tell(context, member, None)
    if await _answers(member, context.withdrawn):
        return Found(problem="It still accepts a certificate of the CA that goes.")
    if await _holds(context, member, None):
        return Found(passed=True)
    return Found(problem="It does not trust what it was told to trust.")


async def rolling_back(context: Pass, member: Member) -> Found:
    """As `closing`, towards the old CA; a node that was never told of the new one is left alone."""
    if member.issuer != context.goal:
        return _wants_certificate(context, member)
    if not member.may_hold_new(context.rotation):
        return Found(passed=True)
    return await closing(context, member)


def _wants_certificate(context: Pass, member: Member) -> Found:
    if member.pending:
        return Found(problem="It waits for approval under the other CA: approve or reject it.")
    if member.node_id in context.busy:
        return Found(problem="Its certificate is being changed.")
    if member.node_id in context.failed_lately:
        return Found(problem="Its certificate could not be changed; it is tried again.")
    if not member.online:
        return Found(problem="It is offline.")
    return Found(problem="Its certificate is being changed.", ask=True)


async def _heal(context: Pass, member: Member) -> None:
    """Tell a node again that fell back behind a stage that it had passed, as after a restore of its state folder."""
    if member.pending:
        return
    try:
        await _tell(context, member, None)
    except NodeTurnedAway:
        await _tell(context, member, context.spare)


async def _holds(context: Pass, member: Member, identity: TlsIdentity | None) -> bool:
    """Whether it answers to `identity` and works with the wanted bundle and keys. NodeOffline when it is silent."""
    try:
        if member.pending:  # it answers nothing else yet; which keys it knows is seen by whom it answers
            info = await _ask(member, identity, "info", AgentInfo)
            return info.trust_bundle_hash == context.bundle_hash
        view = await _ask(member, identity, "pki", PkiView)
    except NodeTurnedAway:
        return False
    return view.trust_bundle_hash == context.bundle_hash and _keys(view.master_spki) == _keys(context.order.master_spki)


async def _answers(member: Member, identity: TlsIdentity) -> bool:
    try:
        await _ask(member, identity, "info", AgentInfo)
    except NodeTurnedAway:
        return False
    return True


async def _ask(member: Member, identity: TlsIdentity | None, path: str, answer: type[T]) -> T:
    return await client.acall_alone(
        member.node_id, "GET", path, answer=answer, identity=identity, timeout_seconds=_CALL_SECONDS
    )


def _keys(master: MasterSpki) -> frozenset[str]:
    return frozenset(key for key in (master.current, master.next) if key)


async def _tell(context: Pass, member: Member, identity: TlsIdentity | None) -> None:
    # An id of its own each time: a repeat would be answered from the journal, and the trust may be older than that.
    await client.acall_alone(
        member.node_id,
        "PUT",
        "pki/trust",
        context.order,
        answer=PkiView,
        operation_id=new_operation_id(),
        identity=identity,
        timeout_seconds=_CALL_SECONDS,
    )
