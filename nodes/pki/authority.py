"""Creation of the fleet's CA and of the master's identities, once; renewal of the master's certificates.

And the one way to another CA without a rotation: the present one is replaced, and every node is re-paired.
"""

import ipaddress
import re
import socket
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import structlog
from cryptography import x509
from django.db import IntegrityError, transaction

from agent.common.keys import key_from_pem, key_to_pem, new_key, spki_of
from agent.wire.base import ENROLL_SERVER_NAME
from audit import log as audit_log
from mirbad.kernel import clock
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Unavailable
from mirbad.kernel.seal import unseal
from nodes import fencing
from nodes.addresses import own_addresses
from nodes.models import Authority, JoinToken, MasterIdentity
from nodes.pki import members, outside, rotation, store
from nodes.pki.certs import (
    Issuer,
    fingerprint,
    from_pem,
    hosts_of,
    issue_enroll,
    issue_master_client,
    make_ca,
    to_pem,
    with_leaf,
)

log = structlog.get_logger(__name__)

RENEW_BEFORE = timedelta(days=120)
_NAMES_LIMIT = 64
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


def ensure() -> MasterIdentity:
    """Return the master's identity, created with the CA in one transaction if there is none; safe in every process.

    Also renews the master's own certificates in time (the keys, and so the pins, stay) and binds the instance id to
    this installation (see `nodes.fencing.bind_instance`).
    """
    if not MasterIdentity.objects.exists():
        _create()
    elif outside.is_configured():
        _follow_files()
    row = store.master()
    changed = _renew(row, hosts_of(from_pem(row.enroll_cert_pem)))
    return store.master() if fencing.bind_instance() or changed else row


def ensure_for_listener() -> MasterIdentity:
    """Do `ensure`, and put every host name and address of this machine into the enroll certificate.

    For the process that listens: on several hosts the addresses of the others are of no use to a joining node.
    """
    row = ensure()
    return store.master() if _renew(row, frozenset(enroll_hosts())) else row


def ca_hashes() -> tuple[str, ...]:
    """Return ``sha256:<hex>`` of each CA that a joining node may meet, the issuing one first."""
    return store.trust().hashes


def enroll_hosts() -> tuple[str, ...]:
    """Return the host names and addresses under which a node may reach the enroll listener, sorted."""
    configured = settings()
    names = {"localhost", "127.0.0.1", "::1", socket.gethostname(), *configured.names, *own_addresses()}
    names.add(urlsplit(configured.enroll_url).hostname or "")
    return (ENROLL_SERVER_NAME, *sorted(filter(None, map(_clean, names)))[:_NAMES_LIMIT])


def _clean(host: str) -> str | None:
    """Return `host` in the form for a certificate: a short address or a lower-case DNS name; else None."""
    text = host.strip().strip("[]").lower().removesuffix(".")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text if _HOST_NAME.fullmatch(text) else None
    return None if address.is_unspecified else str(address)


def replace(issuer: Issuer, reason: str) -> list[str]:
    """Replace every CA by `issuer`, without a cross certificate and without dual trust.

    No node trusts it: each has to be re-paired, and they are returned. Open joins and rotations are ended. In the
    caller's transaction. Raises MasterFenced.
    """
    fencing.require_unfenced()
    now, row = clock.now(), MasterIdentity.objects.select_for_update().get()
    rotation.abandon(row)
    former = Authority.objects.get(slot=Authority.CURRENT)
    Authority.objects.filter(pk=former.pk).update(slot=Authority.RETIRED, key_sealed=None)
    _store(issuer)
    MasterIdentity.objects.filter(pk=row.pk).update(**_identities(issuer, now), updated_at=now)
    # Their responses and commands name the former CA.
    JoinToken.objects.filter(expires_at__gt=now).update(expires_at=now)
    left = members.strand_all(reason)
    log.critical("replaced the fleet's certificate authority", sha256=fingerprint(issuer.cert), reason=reason)
    return left


def fresh_issuer() -> Issuer:
    """Return a new CA that is not stored."""
    key = new_key()
    return Issuer(make_ca(key, clock.now()), key)


def _follow_files() -> None:
    """Replace the stored CA when the settings name other CA files."""
    current = Authority.objects.filter(slot=Authority.CURRENT).values_list("sha256", flat=True).first()
    try:
        if fingerprint(outside.certificate()) == current:
            return
        issuer = outside.issuer()
    except Unavailable as error:
        # The stored CA stays in use: nodes must not be lost to a file that is missing for a moment.
        log.error("the configured CA cannot be used; keeping the stored one", why=error.detail)
        return
    with transaction.atomic():
        left = replace(issuer, "the configured CA was replaced")
        detail = f"configured CA sha256:{fingerprint(issuer.cert)}; nodes to re-pair: {', '.join(left) or 'none'}"
        audit_log.record("pki.ca-rotation", CONFIG, target="replace", detail=detail)


def _create() -> None:
    now = clock.now()
    issuer = outside.issuer() if outside.is_configured() else fresh_issuer()
    try:
        with transaction.atomic():
            # Both rows are unique: of processes that start at the same moment one wins, the others read its rows.
            _store(issuer)
            MasterIdentity.objects.create(
                instance_id=fencing.new_instance_id(), bound_to=fencing.installation(), **_identities(issuer, now)
            )
    except IntegrityError:
        return
    log.info("created the fleet's certificate authority", sha256=fingerprint(issuer.cert))


def _store(issuer: Issuer) -> None:
    Authority.objects.create(
        slot=Authority.CURRENT,
        cert_pem=to_pem(issuer.cert),
        key_sealed=store.seal_key(key_to_pem(issuer.key), store.CA_KEY),
        sha256=fingerprint(issuer.cert),
    )


def _identities(issuer: Issuer, now: datetime) -> dict[str, Any]:
    """Return fresh keys and certificates of the master under `issuer`, as columns."""
    client_key, enroll_key = new_key(), new_key()
    return {
        "client_cert_pem": to_pem(issue_master_client(issuer, client_key.public_key(), now)),
        "client_key_sealed": store.seal_key(key_to_pem(client_key), store.CLIENT_KEY),
        "client_spki": spki_of(client_key.public_key()),
        "next_spki": "",
        "enroll_cert_pem": to_pem(issue_enroll(issuer, enroll_key.public_key(), enroll_hosts(), now)),
        "enroll_key_sealed": store.seal_key(key_to_pem(enroll_key), store.ENROLL_KEY),
    }


def _renew(row: MasterIdentity, hosts: frozenset[str]) -> bool:
    now = clock.now()
    client, enroll = from_pem(row.client_cert_pem), from_pem(row.enroll_cert_pem)
    fresh: dict[str, str] = {}
    if _is_due(client, now):
        key = key_from_pem(unseal(bytes(row.client_key_sealed), store.CLIENT_KEY))
        fresh["client_cert_pem"] = with_leaf(
            row.client_cert_pem, issue_master_client(store.issuer(), key.public_key(), now)
        )
    if _is_due(enroll, now) or not hosts_of(enroll).issuperset(hosts):
        key = key_from_pem(unseal(bytes(row.enroll_key_sealed), store.ENROLL_KEY))
        renewed = issue_enroll(store.issuer(), key.public_key(), sorted(hosts), now)
        fresh["enroll_cert_pem"] = with_leaf(row.enroll_cert_pem, renewed)
    if not fresh:
        return False
    same = {column: getattr(row, column) for column in fresh}
    if MasterIdentity.objects.filter(pk=row.pk, **same).update(**fresh, updated_at=now):
        log.info("renewed the master's certificates", which=sorted(fresh))
    return True


def _is_due(cert: x509.Certificate, now: datetime) -> bool:
    """Return whether a fresh certificate would help: none outlives the authority that signs it."""
    end = cert.not_valid_after_utc
    return end - now < RENEW_BEFORE and max(end, now) < from_pem(store.trust().bundle[0]).not_valid_after_utc
