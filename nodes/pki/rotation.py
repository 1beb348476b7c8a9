"""A rotation of the fleet's CA: its material, and its transitions. The calls to agents are in `jobs.kinds`.

Every transition is one guarded change of the stage with all that belongs to it, in one transaction: a crash leaves the
stage before it or the one after it. Private keys are sealed, and deleted at the end.
"""

import hashlib
from collections.abc import Callable, Sequence

import structlog
from cryptography import x509
from django.db import connection, transaction

from agent.common.keys import key_from_pem, key_to_pem, new_key, spki_of
from agent.wire.enroll import MasterSpki
from agent.wire.pki import TrustUpdate
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Conflict
from mirbad.kernel.guarded import transition
from mirbad.kernel.seal import unseal
from mirbad.live import invalidations
from nodes import fencing
from nodes.models import Authority, CaRotation, MasterIdentity
from nodes.pki import store
from nodes.pki.certs import (
    Issuer,
    cross_sign,
    fingerprint,
    from_pem,
    hosts_of,
    is_issued_by,
    issue_enroll,
    issue_master_client,
    leaf_only,
    make_ca,
    to_pem,
)
from nodes.pki.tls import TlsIdentity
from nodes.states import (
    CA_AGENTS_ROTATING,
    CA_AGENTS_TRUSTING,
    CA_CLOSED,
    CA_CLOSED_EARLY,
    CA_CLOSING,
    CA_MASTER_REISSUED,
    CA_REPLACED,
    CA_ROLLED_BACK,
    CA_ROLLING_BACK,
    CA_ROTATION,
    CA_STARTED,
)

log = structlog.get_logger(__name__)

BEFORE_REISSUE = frozenset({CA_STARTED, CA_AGENTS_TRUSTING})
CAN_ROLL_BACK = CA_ROTATION.sources(CA_ROLLING_BACK)
CAN_CLOSE = frozenset({CA_MASTER_REISSUED, CA_AGENTS_ROTATING, CA_CLOSING, CA_ROLLING_BACK})
"""The stages at which a person may leave behind nodes that do not respond."""


def opened() -> CaRotation | None:
    """Return the open rotation."""
    return CaRotation.objects.filter(finished_at=None).first()


def last() -> CaRotation | None:
    """Return the newest rotation, open or over."""
    return CaRotation.objects.order_by("-started_at").first()


def require_startable() -> None:
    """Raise Conflict when no rotation may start now, MasterFenced."""
    fencing.require_unfenced()
    if settings().pki_ca_cert_file is not None:
        raise Conflict(
            "The CA is configured (MIRBAD_PKI_CA_CERT_FILE). Replace those files, restart, and re-pair the nodes."
        )
    found = opened()
    if found is not None:
        raise Conflict(f"CA rotation {found.pk} is open at {found.stage}. Finish it first.")
    if Authority.objects.exclude(slot__in=(Authority.CURRENT, Authority.RETIRED)).exists():
        raise Conflict(
            "The master trusts more than one CA although no rotation is open. Restore the database from a snapshot."
        )


def begin(rotation_id: str) -> CaRotation:
    """Create the new CA and all material that the master needs for it, in the caller's transaction.

    Raises the errors of `require_startable`, Unavailable.
    """
    row = MasterIdentity.objects.select_for_update().get()
    require_startable()
    now, old = clock.now(), store.issuer()
    ca_key, client_key, enroll_key = new_key(), new_key(), new_key()
    new = Issuer(make_ca(ca_key, now), ca_key)
    cross = to_pem(cross_sign(old, new.cert, now))
    old_client_key = key_from_pem(unseal(bytes(row.client_key_sealed), store.CLIENT_KEY))
    hosts = sorted(hosts_of(from_pem(row.enroll_cert_pem)))
    # A certificate that an earlier rotation retired frees its slot.
    Authority.objects.filter(slot=Authority.RETIRED).delete()
    Authority.objects.create(
        slot=Authority.NEXT,
        cert_pem=to_pem(new.cert),
        key_sealed=store.seal_key(key_to_pem(ca_key), store.CA_KEY),
        sha256=fingerprint(new.cert),
    )
    rotation = CaRotation.objects.create(
        id=rotation_id,
        stage=CA_STARTED,
        stage_since=now,
        started_at=now,
        old_sha256=fingerprint(old.cert),
        new_sha256=fingerprint(new.cert),
        new_client_pem=to_pem(issue_master_client(new, client_key.public_key(), now)) + cross,
        new_client_key_sealed=store.seal_key(key_to_pem(client_key), store.CLIENT_KEY),
        new_client_spki=spki_of(client_key.public_key()),
        new_enroll_pem=to_pem(issue_enroll(new, enroll_key.public_key(), hosts, now)) + cross,
        new_enroll_key_sealed=store.seal_key(key_to_pem(enroll_key), store.ENROLL_KEY),
        probe_old_pem=to_pem(issue_master_client(old, client_key.public_key(), now)),
        probe_new_pem=to_pem(issue_master_client(new, old_client_key.public_key(), now)),
        **_kept(row),
    )
    MasterIdentity.objects.filter(pk=row.pk).update(next_spki=rotation.new_client_spki, updated_at=now)
    log.warning("CA rotation started", rotation=rotation.pk, old=rotation.old_sha256, new=rotation.new_sha256)
    _announce()
    return rotation


def move(rotation: CaRotation, target: str) -> None:
    """Move to `target` with all that belongs to it, in one transaction. Conflict when another process was faster."""
    now = clock.now()
    with transaction.atomic():
        row = MasterIdentity.objects.select_for_update().get()
        ends = not CA_ROTATION.moves[target]
        also = {"finished_at": now, "old_client_key_sealed": None, "new_client_key_sealed": None} if ends else {}
        if ends:
            also |= {"old_enroll_key_sealed": None, "new_enroll_key_sealed": None}
        rows = CaRotation.objects.filter(pk=rotation.pk, stage=rotation.stage, finished_at=None)
        transition(rows, CA_ROTATION, "stage", target, stage_since=now, **also)
        effect = _EFFECTS.get(target)
        if effect is not None:
            effect(rotation, row)
        if ends:
            transaction.on_commit(_forget_pages, robust=True)
        _announce()
    rotation.refresh_from_db()
    if ends:
        ended = f"CA rotation {rotation.pk} ended {target}."
        log.warning(ended)
    else:
        log.info("CA rotation moved on", rotation=rotation.pk, stage=target)


def ask_to_close(rotation: CaRotation) -> bool:
    """Stop waiting for nodes that do not respond; return whether that is new. Conflict when it is too early."""
    if rotation.stage not in CAN_CLOSE:
        raise Conflict(
            f"CA rotation {rotation.pk} is at {rotation.stage}. It can be closed early once the master has its new "
            "certificate (MasterReissued); until then, roll it back."
        )
    rows = CaRotation.objects.filter(pk=rotation.pk, stage__in=CAN_CLOSE, close_asked_at=None)
    return bool(rows.update(close_asked_at=clock.now()))


def order() -> TrustUpdate:
    """Return the CAs that a node has to trust now, and the master's keys that it has to know: the order for a joining
    node.
    """
    row = store.master()
    return TrustUpdate(
        ca_bundle=store.trust().bundle,
        master_spki=MasterSpki(current=row.client_spki, next=row.next_spki or None),
    )


def bundle_hash(bundle: Sequence[str]) -> str:
    """Return the hash under which an agent reports that it has loaded `bundle` (PEM); the order does not matter."""
    return hashlib.sha256("\n".join(sorted(fingerprint(from_pem(pem)) for pem in bundle)).encode()).hexdigest()


def new_identity(rotation: CaRotation) -> TlsIdentity:
    """Return the master's certificate under the new CA, with its cross certificate."""
    return _identity(rotation.new_client_pem, rotation.new_client_key_sealed)


def old_identity(rotation: CaRotation) -> TlsIdentity:
    """Return the master's certificate from before the rotation."""
    return _identity(rotation.old_client_pem, rotation.old_client_key_sealed)


def withdrawn_identity(rotation: CaRotation) -> TlsIdentity:
    """Return a certificate that nodes must refuse: of the withdrawn CA, for the very key that they know.

    Only its CA can be the reason for which it is refused.
    """
    if rotation.stage == CA_ROLLING_BACK:
        return _identity(rotation.probe_new_pem, rotation.old_client_key_sealed)
    return _identity(rotation.probe_old_pem, rotation.new_client_key_sealed)


def authority_of(cert: x509.Certificate, authorities: Sequence[Authority]) -> str:
    """Return the SHA-256 of the authority of `authorities` that issued `cert`; empty when none did."""
    return next((row.sha256 for row in authorities if is_issued_by(cert, from_pem(row.cert_pem))), "")


def _identity(pem: str, key_sealed: bytes | memoryview | None) -> TlsIdentity:
    if key_sealed is None:
        raise Conflict("The CA rotation is over; the key of that certificate is destroyed.")
    return TlsIdentity((pem,), unseal(bytes(key_sealed), store.CLIENT_KEY))


def _kept(row: MasterIdentity) -> dict[str, object]:
    return {
        "old_client_pem": row.client_cert_pem,
        "old_client_key_sealed": row.client_key_sealed,
        "old_client_spki": row.client_spki,
        "old_enroll_pem": row.enroll_cert_pem,
        "old_enroll_key_sealed": row.enroll_key_sealed,
    }


def _reissue(rotation: CaRotation, row: MasterIdentity) -> None:
    """Sign with the new CA from now on, and present its certificates of the master."""
    # Read again: the old certificates may have been renewed since the start.
    CaRotation.objects.filter(pk=rotation.pk).update(**_kept(row))
    _rename(Authority.CURRENT, Authority.PREVIOUS)
    _rename(Authority.NEXT, Authority.CURRENT)
    _show(
        row,
        client_cert_pem=rotation.new_client_pem,
        client_key_sealed=rotation.new_client_key_sealed,
        client_spki=rotation.new_client_spki,
        next_spki=row.client_spki,
        enroll_cert_pem=rotation.new_enroll_pem,
        enroll_key_sealed=rotation.new_enroll_key_sealed,
    )


def _begin_closing(rotation: CaRotation, row: MasterIdentity) -> None:
    """Give the old CA to no node any more, nor the old key of the master."""
    _rename(Authority.PREVIOUS, Authority.WITHDRAWN)
    _show(row, next_spki="")


def _close(rotation: CaRotation, row: MasterIdentity) -> None:
    """Destroy the old key; its certificate is kept."""
    Authority.objects.filter(slot=Authority.WITHDRAWN).update(slot=Authority.RETIRED, key_sealed=None)
    _show(row, client_cert_pem=leaf_only(row.client_cert_pem), enroll_cert_pem=leaf_only(row.enroll_cert_pem))


def _begin_roll_back(rotation: CaRotation, row: MasterIdentity) -> None:
    """Sign with the old CA (again), and give the new one to no node."""
    if rotation.stage in BEFORE_REISSUE:
        _rename(Authority.NEXT, Authority.WITHDRAWN)
        _show(row, next_spki="")
    else:
        _rename(Authority.CURRENT, Authority.WITHDRAWN)
        _rename(Authority.PREVIOUS, Authority.CURRENT)
        _show(
            row,
            client_cert_pem=rotation.old_client_pem,
            client_key_sealed=rotation.old_client_key_sealed,
            client_spki=rotation.old_client_spki,
            next_spki="",
            enroll_cert_pem=rotation.old_enroll_pem,
            enroll_key_sealed=rotation.old_enroll_key_sealed,
        )
    CaRotation.objects.filter(pk=rotation.pk).update(close_asked_at=None)


def _roll_back(rotation: CaRotation, row: MasterIdentity) -> None:
    Authority.objects.filter(slot=Authority.WITHDRAWN).update(slot=Authority.RETIRED, key_sealed=None)


_EFFECTS: dict[str, Callable[[CaRotation, MasterIdentity], None]] = {
    CA_MASTER_REISSUED: _reissue,
    CA_CLOSING: _begin_closing,
    CA_CLOSED: _close,
    CA_CLOSED_EARLY: _close,
    CA_ROLLING_BACK: _begin_roll_back,
    CA_ROLLED_BACK: _roll_back,
}


def abandon(row: MasterIdentity) -> None:
    """End an open rotation because its CAs are replaced, in the caller's transaction."""
    now = clock.now()
    CaRotation.objects.filter(finished_at=None).update(
        stage=CA_REPLACED,
        stage_since=now,
        finished_at=now,
        old_client_key_sealed=None,
        new_client_key_sealed=None,
        old_enroll_key_sealed=None,
        new_enroll_key_sealed=None,
    )
    Authority.objects.exclude(slot=Authority.CURRENT).delete()
    _show(row, next_spki="")


def _rename(slot: str, to: str) -> None:
    if not Authority.objects.filter(slot=slot).update(slot=to):
        raise Conflict(f"There is no {slot} CA to become the {to} one; the rotation cannot continue.")


def _show(row: MasterIdentity, **columns: object) -> None:
    MasterIdentity.objects.filter(pk=row.pk).update(**columns, updated_at=clock.now())


def _announce() -> None:
    transaction.on_commit(lambda: invalidations.changed("nodes"), robust=True)


def _forget_pages() -> None:
    """Truncate SQLite's log, which holds pages with a destroyed key; an older snapshot still has them."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            cursor.fetchall()
