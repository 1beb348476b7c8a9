"""Making of the fleet's authority and of the master's identities, once; renewing of the master's certificates."""

import ipaddress
import re
import socket
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import structlog
from cryptography import x509
from django.db import IntegrityError, transaction

from agent.wire.base import ENROLL_SERVER_NAME
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.seal import unseal
from nodes import fencing
from nodes.addresses import own_addresses
from nodes.models import Authority, MasterIdentity
from nodes.pki import store
from nodes.pki.certs import (
    Issuer,
    fingerprint,
    from_pem,
    hosts_of,
    issue_enroll,
    issue_master_client,
    make_ca,
    to_pem,
)
from nodes.pki.keys import key_from_pem, key_to_pem, new_key, spki_of

log = structlog.get_logger(__name__)

RENEW_BEFORE = timedelta(days=120)
_NAMES_LIMIT = 64
_HOST_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


def ensure() -> MasterIdentity:
    """The master's identity, made with the CA in one transaction when there is none; safe to call from every process.

    Also renews the master's own certificates in time (the keys, and so the pins, stay) and binds the instance id to
    this installation (see `nodes.fencing.bind_instance`).
    """
    if not MasterIdentity.objects.exists():
        _create()
    row = store.master()
    changed = _renew(row, hosts_of(from_pem(row.enroll_cert_pem)))
    return store.master() if fencing.bind_instance() or changed else row


def ensure_for_listener() -> MasterIdentity:
    """`ensure`, and the enroll certificate carries every host name and address of this machine.

    For the process that listens: on several hosts the others' addresses mean nothing to a joining node.
    """
    row = ensure()
    return store.master() if _renew(row, frozenset(enroll_hosts())) else row


def ca_hashes() -> tuple[str, ...]:
    """``sha256:<hex>`` of each CA that a joining node may meet, the issuing one first."""
    return store.trust().hashes


def enroll_hosts() -> tuple[str, ...]:
    """Host names and addresses under which a node may reach the enroll listener, sorted."""
    configured = settings()
    names = {"localhost", "127.0.0.1", "::1", socket.gethostname(), *configured.hosts, *own_addresses()}
    names.add(urlsplit(configured.enroll_url).hostname or "")
    return (ENROLL_SERVER_NAME, *sorted(filter(None, map(_clean, names)))[:_NAMES_LIMIT])


def _clean(host: str) -> str | None:
    """`host` as a certificate may carry it: an address in its short form or a lower-case DNS name; else None."""
    text = host.strip().strip("[]").lower().removesuffix(".")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text if _HOST_NAME.fullmatch(text) else None
    return None if address.is_unspecified else str(address)


def _create() -> None:
    now = clock.now()
    ca_key, client_key, enroll_key = new_key(), new_key(), new_key()
    issuer = Issuer(make_ca(ca_key, now), ca_key)
    try:
        with transaction.atomic():
            # Both rows are unique: of processes that start at the same moment one wins, the others take what it made.
            Authority.objects.create(
                slot=Authority.CURRENT,
                cert_pem=to_pem(issuer.cert),
                key_sealed=store.seal_key(key_to_pem(ca_key), store.CA_KEY),
                sha256=fingerprint(issuer.cert),
            )
            MasterIdentity.objects.create(
                instance_id=fencing.new_instance_id(),
                bound_to=fencing.installation(),
                client_cert_pem=to_pem(issue_master_client(issuer, client_key.public_key(), now)),
                client_key_sealed=store.seal_key(key_to_pem(client_key), store.CLIENT_KEY),
                client_spki=spki_of(client_key.public_key()),
                enroll_cert_pem=to_pem(issue_enroll(issuer, enroll_key.public_key(), enroll_hosts(), now)),
                enroll_key_sealed=store.seal_key(key_to_pem(enroll_key), store.ENROLL_KEY),
            )
    except IntegrityError:
        return
    log.info("made the fleet's certificate authority", sha256=fingerprint(issuer.cert))


def _renew(row: MasterIdentity, hosts: frozenset[str]) -> bool:
    now = clock.now()
    client, enroll = from_pem(row.client_cert_pem), from_pem(row.enroll_cert_pem)
    fresh: dict[str, str] = {}
    if _is_due(client, now):
        key = key_from_pem(unseal(bytes(row.client_key_sealed), store.CLIENT_KEY))
        fresh["client_cert_pem"] = to_pem(issue_master_client(store.issuer(), key.public_key(), now))
    if _is_due(enroll, now) or not hosts_of(enroll).issuperset(hosts):
        key = key_from_pem(unseal(bytes(row.enroll_key_sealed), store.ENROLL_KEY))
        fresh["enroll_cert_pem"] = to_pem(issue_enroll(store.issuer(), key.public_key(), sorted(hosts), now))
    if not fresh:
        return False
    same = {column: getattr(row, column) for column in fresh}
    if MasterIdentity.objects.filter(pk=row.pk, **same).update(**fresh, updated_at=now):
        log.info("renewed certificates of the master", which=sorted(fresh))
    return True


def _is_due(cert: x509.Certificate, now: datetime) -> bool:
    """Whether a fresh certificate would help: none outlives the authority that signs it."""
    end = cert.not_valid_after_utc
    return end - now < RENEW_BEFORE and max(end, now) < from_pem(store.trust().bundle[0]).not_valid_after_utc
