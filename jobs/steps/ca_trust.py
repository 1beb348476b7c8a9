"""Checks of one node in a pass of a CA rotation: check, set its trust, check again. Every check is a whole request.

A successful handshake of TLS 1.3 proves nothing about our own certificate, so a node has accepted one only when it
answered, and refused one only when it closed the connection and answers to another.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent.wire.capability import AgentInfo
from agent.wire.enroll import MasterSpki
from agent.wire.pki import PkiView, TrustUpdate
from mirbad.kernel.ids import new_operation_id
from nodes.errors import NodeTurnedAway
from nodes.link import client
from nodes.link.client import T
from nodes.models import CaRotation
from nodes.pki.members import Member
from nodes.pki.tls import TlsIdentity

_CALL_SECONDS = 6.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. With `needs_certificate` the node's certificate is to be rotated."""

    passed: bool = False
    problem: str = ""
    needs_certificate: bool = False


@dataclass(frozen=True, slots=True)
class Pass:
    """The values that every check of one pass needs."""

    rotation: CaRotation
    order: TrustUpdate
    bundle_hash: str
    goal: str
    spare: TlsIdentity
    """The certificate that the master does not show now: the new one before its reissue, the old one after it."""
    withdrawn: TlsIdentity
    busy: frozenset[str]
    failed_lately: frozenset[str]


Check = Callable[[Pass, Member], Awaitable[CheckResult]]


async def trusting(context: Pass, member: Member) -> CheckResult:
    """Check that both CAs are loaded, and that a whole request under the new certificate is answered."""
    if await _holds(context, member, None) and await _holds(context, member, context.spare):
        return CheckResult(passed=True)
    if member.pending:
        return CheckResult(problem="It waits for approval and trusts the old CA alone: approve or reject it.")
    await _set_trust(context, member, None)
    if await _holds(context, member, None) and await _holds(context, member, context.spare):
        return CheckResult(passed=True)
    return CheckResult(problem="It has both CAs but does not use them yet.")


async def rotating(context: Pass, member: Member) -> CheckResult:
    """Check that the node shows a certificate under the CA of the stage, with the pinned key."""
    if not await _holds(context, member, None):
        await _heal(context, member)
    if member.issuer != context.goal:
        return _needs_certificate(context, member)
    if await _holds(context, member, None):
        return CheckResult(passed=True)
    return CheckResult(problem="It does not use the CAs that it was given.")


async def closing(context: Pass, member: Member) -> CheckResult:
    """Check that the node refuses a certificate of the removed CA for a known key, and accepts the current one."""
    if member.issuer != context.goal:
        return CheckResult(problem="It has no certificate under the remaining CA.")
    if not await _holds(context, member, None):
        if member.pending:
            return CheckResult(problem="It waits for approval; its trust is set once it is approved.")
        await _set_trust(context, member, None)
    if await _answers(member, context.withdrawn):
        return CheckResult(problem="It still accepts a certificate of the removed CA.")
    if await _holds(context, member, None):
        return CheckResult(passed=True)
    return CheckResult(problem="It does not use the CAs that it was given.")


async def rolling_back(context: Pass, member: Member) -> CheckResult:
    """As `closing`, towards the old CA; a node that never got the new one passes."""
    if member.issuer != context.goal:
        return _needs_certificate(context, member)
    if not member.may_hold_new(context.rotation):
        return CheckResult(passed=True)
    return await closing(context, member)


def _needs_certificate(context: Pass, member: Member) -> CheckResult:
    if member.pending:
        return CheckResult(problem="It waits for approval under the other CA: approve or reject it.")
    if member.node_id in context.busy:
        return CheckResult(problem="Its certificate is being rotated.")
    if member.node_id in context.failed_lately:
        return CheckResult(problem="Its certificate could not be rotated; retrying.")
    if not member.online:
        return CheckResult(problem="It is offline.")
    return CheckResult(problem="Its certificate is being rotated.", needs_certificate=True)


async def _heal(context: Pass, member: Member) -> None:
    """Set the trust of a node again that fell behind a stage, as after a restore of its state folder."""
    if member.pending:
        return
    try:
        await _set_trust(context, member, None)
    except NodeTurnedAway:
        await _set_trust(context, member, context.spare)


async def _holds(context: Pass, member: Member, identity: TlsIdentity | None) -> bool:
    """Return whether the node accepts `identity` and uses the bundle and keys of the pass. NodeOffline when silent."""
    try:
        if member.pending:  # it answers nothing else yet; the keys it knows show in whom it answers
            info = await _call(member, identity, "info", AgentInfo)
            return info.trust_bundle_hash == context.bundle_hash
        view = await _call(member, identity, "pki", PkiView)
    except NodeTurnedAway:
        return False
    return view.trust_bundle_hash == context.bundle_hash and _keys(view.master_spki) == _keys(context.order.master_spki)


async def _answers(member: Member, identity: TlsIdentity) -> bool:
    try:
        await _call(member, identity, "info", AgentInfo)
    except NodeTurnedAway:
        return False
    return True


async def _call(member: Member, identity: TlsIdentity | None, path: str, answer: type[T]) -> T:
    return await client.acall_once(
        member.node_id, "GET", path, answer=answer, identity=identity, timeout_seconds=_CALL_SECONDS
    )


def _keys(master: MasterSpki) -> frozenset[str]:
    return frozenset(key for key in (master.current, master.next) if key)


async def _set_trust(context: Pass, member: Member, identity: TlsIdentity | None) -> None:
    # A new id each time: a repeat would be answered from the journal, and the trust may be older than that.
    await client.acall_once(
        member.node_id,
        "PUT",
        "pki/trust",
        context.order,
        answer=PkiView,
        operation_id=new_operation_id(),
        identity=identity,
        timeout_seconds=_CALL_SECONDS,
    )
