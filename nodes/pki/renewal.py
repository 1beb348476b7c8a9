"""A new key for one node, in two phases: the keys that the master accepts meanwhile, and the time of a renewal.

The pin ``next`` is valid from before the node is given the certificate until the node was observed with it, or reported
that it has dropped it. Only then is one of the two pins deleted: a crash anywhere leaves the key that the node presents
accepted.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from django.db import transaction

from agent.common.keys import spki_of
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Conflict
from mirbad.live import invalidations
from nodes.errors import NodeRevoked, no_such_node
from nodes.models import Node, NodePin, RevokedKey
from nodes.pki import store
from nodes.pki.certs import LEAF_BACKDATE, from_pem, issue_node, to_pem
from nodes.pki.signing_requests import csr_public_key
from nodes.states import APPROVED, REVOKED

_RENEW_AT = 60 / 90
_JITTER = 3 / 90
_RETRY_AT_MOST = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Staged:
    """A certificate for a node. `bundle` is the PEM of the CAs that it must chain to."""

    spki: str
    chain: tuple[str, ...]
    bundle: tuple[str, ...]


def current_spki(node_id: str) -> str:
    """Return the key that the node is known by. Raises NotFound, NodeRevoked, Conflict (not approved, or no key)."""
    node = Node.objects.filter(pk=node_id).first()
    if node is None:
        raise no_such_node(node_id)
    if node.lifecycle == REVOKED:
        raise NodeRevoked(f"Node {node_id} is revoked.")
    if node.lifecycle != APPROVED:
        raise Conflict(f"Node {node_id} waits for approval. Approve it first.")
    pin = NodePin.objects.filter(node=node, slot=NodePin.CURRENT).first()
    if pin is None:
        raise Conflict(f"Node {node_id} has no known key. Re-pair it.")
    return pin.spki_sha256


def stage(node_id: str, csr_pem: str, base_spki: str) -> Staged:
    """Issue a certificate for the key of `csr_pem` and accept that key beside the present one, `base_spki`.

    In one transaction; the same key again gives the certificate that was issued. Raises Conflict when the node has
    another key than `base_spki` by now, BadRequestToSign, and the errors of `current_spki`.
    """
    key = csr_public_key(csr_pem)
    spki = spki_of(key)
    with transaction.atomic():
        node = _locked(node_id, base_spki)
        bundle = store.trust().bundle
        pin = NodePin.objects.filter(node=node, slot=NodePin.NEXT).first()
        if pin is not None and pin.spki_sha256 == spki:
            return Staged(spki, (pin.cert_pem,), bundle)
        if RevokedKey.objects.filter(pk=spki).exists() or NodePin.objects.filter(spki_sha256=spki).exists():
            raise Conflict(f"Node {node_id} offers a key that is in use or was revoked. Start the rotation again.")
        cert = issue_node(store.issuer(), key, str(node.uid), clock.now(), settings().agent_certificate_life)
        NodePin.objects.update_or_create(
            node=node,
            slot=NodePin.NEXT,
            defaults={
                "spki_sha256": spki,
                "cert_pem": to_pem(cert),
                "cert_not_after": cert.not_valid_after_utc,
                "created_at": clock.now(),
            },
        )
        _announce(node_id)
    return Staged(spki, (to_pem(cert),), bundle)


def staged(node_id: str) -> Staged | None:
    """Return the certificate that waits for the node; None when there is none."""
    pin = NodePin.objects.filter(node_id=node_id, slot=NodePin.NEXT).first()
    return None if pin is None else Staged(pin.spki_sha256, (pin.cert_pem,), store.trust().bundle)


def commit(node_id: str, spki: str) -> bool:
    """Make `spki` the one key of the node, which was observed with it. False when it was so already.

    In the caller's transaction. Raises Conflict when the node has neither (it was re-paired meanwhile).
    """
    pins = {pin.slot: pin for pin in NodePin.objects.select_for_update().filter(node_id=node_id)}
    waiting, current = pins.get(NodePin.NEXT), pins.get(NodePin.CURRENT)
    if current is not None and current.spki_sha256 == spki:
        return False
    if waiting is None or waiting.spki_sha256 != spki:
        raise Conflict(f"Node {node_id} has another key by now.")
    NodePin.objects.filter(node_id=node_id, slot=NodePin.CURRENT).delete()
    NodePin.objects.filter(pk=waiting.pk).update(slot=NodePin.CURRENT)
    Node.objects.filter(pk=node_id).update(cert_not_after=waiting.cert_not_after)
    _announce(node_id)
    return True


def drop(node_id: str, spki: str) -> bool:
    """Stop accepting key `spki`, which the node no longer has. In the caller's transaction."""
    gone, _ = NodePin.objects.filter(node_id=node_id, slot=NodePin.NEXT, spki_sha256=spki).delete()
    if gone:
        _announce(node_id)
    return bool(gone)


def renewal_at(pin: NodePin) -> datetime | None:
    """Return the time at which the certificate of `pin` is renewed: two thirds of its life, a little earlier or later
    by key.
    """
    return _renewal_at(pin.cert_pem, pin.spki_sha256) if pin.cert_pem else None


# A list of a fleet calls this for every node, each time.
@lru_cache(maxsize=4096)
def _renewal_at(cert_pem: str, spki_sha256: str) -> datetime:
    cert = from_pem(cert_pem)
    issued = cert.not_valid_before_utc + LEAF_BACKDATE
    life = cert.not_valid_after_utc - issued
    draw = int(hashlib.sha256(spki_sha256.encode()).hexdigest()[:8], 16) / 0xFFFFFFFF
    return issued + life * (_RENEW_AT + _JITTER * (2 * draw - 1))


def retry_after() -> timedelta:
    """Return the delay between a failed renewal and the next attempt: an hour, less for short lives."""
    return min(_RETRY_AT_MOST, settings().agent_certificate_life / 24)


def due(now: datetime) -> list[str]:
    """Return the approved nodes whose certificate is due for renewal, the most urgent first; one statement."""
    left = settings().agent_certificate_life * (1 - _RENEW_AT + _JITTER)
    pins = NodePin.objects.filter(
        slot=NodePin.CURRENT, node__lifecycle=APPROVED, cert_not_after__lte=now + left
    ).order_by("cert_not_after")
    return [pin.node_id for pin in pins if (at := renewal_at(pin)) is not None and at <= now]


def _locked(node_id: str, base_spki: str) -> Node:
    node = Node.objects.select_for_update().filter(pk=node_id).first()
    if node is None or current_spki(node_id) != base_spki:
        raise Conflict(f"Node {node_id} has another key by now.")
    return node


def _announce(node_id: str) -> None:
    transaction.on_commit(lambda: invalidations.changed("nodes", node_id), robust=True)
