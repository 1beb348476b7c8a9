"""The join: a token and a signing request arrive, a certificate is issued, a pending node is written."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from cryptography.hazmat.primitives.asymmetric import ec
from django.db import IntegrityError, transaction

from agent.common.keys import spki_of
from agent.wire.enroll import EnrollRequest, EnrollResponse, MasterSpki
from audit import log as audit_log
from mirbad.kernel import actor as actors
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import InvalidRequest
from mirbad.live import invalidations
from nodes import addresses, fencing, reachability
from nodes.enrollment import tokens
from nodes.enrollment.limits import peer_group
from nodes.enrollment.tokens import JoinRejected
from nodes.errors import EnrollmentRefused
from nodes.models import JoinToken, Node, NodePin, RevokedKey
from nodes.pki import store
from nodes.pki.certs import issue_node, to_pem
from nodes.pki.signing_requests import BadRequestToSign, csr_public_key
from nodes.states import APPROVED, PENDING

log = structlog.get_logger(__name__)

_REFUSED = (
    "The master refuses to enroll this node. The token may be wrong, used, expired or revoked, or made for another "
    "node or purpose. Create a new one on the master."
)
_TRIES = 3
_CLOCK_LIMIT = timedelta(minutes=45)


@dataclass(frozen=True, slots=True)
class _Join:
    """One parsed request."""

    request: EnrollRequest
    key: ec.EllipticCurvePublicKey
    spki: str
    peer: str
    rekey: bool
    now: datetime


def enroll(request: EnrollRequest, peer: str, *, rekey: bool = False) -> EnrollResponse:
    """Enroll the machine at `peer` (an address), or give an enrolled one a new key (`rekey`).

    Raises InvalidRequest (no usable signing request or address), EnrollmentRefused (everything else, in one sentence),
    MasterFenced, Unavailable.
    """
    try:
        key = csr_public_key(request.csr_pem)
    except BadRequestToSign as error:
        raise InvalidRequest(str(error)) from error
    fencing.require_unfenced()
    _check_clock(request.time)
    join = _Join(request, key, spki_of(key), peer, rekey, clock.now())
    token, token_id = tokens.find(request.token, peer_group(peer))
    try:
        if token is None:
            raise JoinRejected("the token is not valid")
        return _enroll(join, token)
    except JoinRejected as refusal:
        _note_refusal(join, token_id, refusal)
        raise EnrollmentRefused(_REFUSED) from None


def _check_clock(text: str | None) -> None:
    """Refuse a wrong clock: certificates are issued an hour back in time, so a node further off cannot use its own."""
    if text is None:
        return
    try:
        theirs = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequest("The time of the node cannot be read.") from error
    ours = clock.now()
    if theirs.tzinfo is None or abs(theirs - ours) > _CLOCK_LIMIT:
        raise InvalidRequest(
            f"The node's clock says {theirs:%Y-%m-%d %H:%M} UTC while the master's says {ours:%Y-%m-%d %H:%M} UTC. "
            "Correct the wrong clock, then join again with the same token."
        )


def _enroll(join: _Join, token: JoinToken) -> EnrollResponse:
    tokens.require_usable(token, join.request.node_id, join.now, rekey=join.rekey)
    if token.used_at is not None:
        return tokens.stored_answer(token, join.spki)
    address = addresses.check(
        join.request.address or join.peer,
        join.request.port,
        loopback_allowed=_loopback_allowed(token),
    )
    for _ in range(_TRIES):
        try:
            with transaction.atomic():
                answer = _store(join, token, address)
        except IntegrityError:
            # Another join of the same id or key committed in between; the token was not spent. Look again.
            continue
        if answer is not None:
            return answer
        return tokens.stored_answer(JoinToken.objects.filter(pk=token.pk).first(), join.spki)
    raise JoinRejected("another join of the same node or key is in progress")


def _store(join: _Join, token: JoinToken, address: str) -> EnrollResponse | None:
    """Spend the token and write node, pin and answer, in the caller's transaction. None when another join spent it."""
    if not tokens.spend(token, join.spki, join.peer, join.now):
        return None
    if RevokedKey.objects.filter(pk=join.spki).exists():
        raise JoinRejected("the key was revoked", alarm=True)
    node = Node.objects.select_for_update().filter(pk=join.request.node_id).first()
    if NodePin.objects.filter(spki_sha256=join.spki).exclude(node=node).exists():
        raise JoinRejected("the key belongs to another node", alarm=True)
    node = _rekeyed(join, node) if join.rekey else _joined(join, node, token)
    _write_node(join, node, address)
    issuer, trust, master = store.issuer(), store.trust(), store.master()
    cert = issue_node(issuer, join.key, str(node.uid), join.now, settings().agent_certificate_life)
    answer = EnrollResponse(
        node_uid=str(node.uid),
        chain=(to_pem(cert),),
        ca_bundle=trust.bundle,
        master_spki=MasterSpki(current=master.client_spki, next=master.next_spki or None),
    )
    _write_pin(node, join.spki, to_pem(cert), cert.not_valid_after_utc)
    tokens.store_answer(token, answer)
    audit_log.record(
        "node.enroll",
        actors.api(join.peer),
        node_id=node.pk,
        target=token.purpose,
        detail=f"key {join.spki}, agent at {address} port {join.request.port}",
    )
    transaction.on_commit(lambda: invalidations.changed("nodes", join.request.node_id))
    return answer


def _joined(join: _Join, node: Node | None, token: JoinToken) -> Node:
    if node is None:
        return Node(id=join.request.node_id, is_bootstrap=token.purpose == JoinToken.BOOTSTRAP)
    if node.lifecycle != PENDING:
        raise JoinRejected(f"the node is already {node.lifecycle}", alarm=True)
    node.is_bootstrap = node.is_bootstrap or token.purpose == JoinToken.BOOTSTRAP
    return node


def _rekeyed(join: _Join, node: Node | None) -> Node:
    if node is None or node.lifecycle not in {PENDING, APPROVED}:
        raise JoinRejected("there is no node to re-pair")
    if join.request.node_uid != str(node.uid):
        raise JoinRejected("the node has another uid")
    return node


def _write_node(join: _Join, node: Node, address: str) -> None:
    request = join.request
    # An approved node keeps the address that an operator may have set; a joining node reports its own.
    if node.lifecycle == PENDING or request.address is not None:
        node.address, node.port = address, request.port
    node.machine = request.machine.to_wire()
    node.request_address = join.peer[:64]
    node.enrolled_at = join.now
    if node._state.adding:  # noqa: SLF001 - Django's documented flag for a row that is not stored yet
        node.save(force_insert=True)
        return
    node.save(update_fields=["is_bootstrap", "address", "port", "machine", "request_address", "enrolled_at"])
    reachability.forget(node.pk)


def _write_pin(node: Node, spki: str, cert_pem: str, not_after: datetime) -> None:
    """Write the new key to the slot of the node's lifecycle: pending until approval, current after it."""
    slot = NodePin.CURRENT if node.lifecycle == APPROVED else NodePin.PENDING
    NodePin.objects.filter(node=node).exclude(slot=slot).delete()
    NodePin.objects.update_or_create(
        node=node,
        slot=slot,
        defaults={"spki_sha256": spki, "cert_pem": cert_pem, "cert_not_after": not_after, "created_at": clock.now()},
    )


def _loopback_allowed(token: JoinToken) -> bool:
    """Return whether a loopback address is valid: for the master's own machine, at its first join and at a re-pair."""
    if token.purpose == JoinToken.BOOTSTRAP:
        return True
    return token.purpose == JoinToken.REKEY and Node.objects.filter(pk=token.node_id_text, is_bootstrap=True).exists()


def _note_refusal(join: _Join, token_id: str, refusal: JoinRejected) -> None:
    """Count and record a refusal. Only attempts on an existing token reach the database, so that nobody can fill it."""
    node_id = join.request.node_id if join.request.node_id.isprintable() else "?"
    level = log.error if refusal.alarm else log.warning
    level("enrollment refused", why=refusal.why, node=node_id[:64], peer=join.peer, key=join.spki, alarm=refusal.alarm)
    if not token_id:
        return
    tokens.count_wrong(token_id, peer_group(join.peer))
    audit_log.record_refusal(
        "node.enroll",
        actors.api(join.peer),
        EnrollmentRefused(f"{refusal.why}; key {join.spki}"),
        node_id=node_id[:40],
    )
