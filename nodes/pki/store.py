"""Authorities and the master's own identities, read from their rows, in which private keys are sealed."""

from dataclasses import dataclass

from agent.common.keys import key_from_pem
from mirbad.kernel import clock
from mirbad.kernel.errors import Unavailable
from mirbad.kernel.seal import seal, unseal
from nodes.models import Authority, MasterIdentity
from nodes.pki.certs import Issuer, from_pem
from nodes.pki.tls import TlsIdentity

CA_KEY = "nodes.authority.key"
CLIENT_KEY = "nodes.master.client-key"
ENROLL_KEY = "nodes.master.enroll-key"


@dataclass(frozen=True, slots=True)
class Trust:
    """The CAs that are valid now. `bundle` is PEM, the issuing CA first; `hashes` are ``sha256:<hex>`` in that order.

    `leads` are those of them that the master's own certificates lead to; the next CA has signed none of them yet.
    """

    bundle: tuple[str, ...]
    hashes: tuple[str, ...]
    leads: tuple[str, ...] = ()


def seal_key(pem: bytes, purpose: str) -> bytes:
    """Return a private key in its stored form."""
    return seal(pem, purpose)


def issuer() -> Issuer:
    """Return the CA that signs now.

    Raises Unavailable before `authority.ensure` and after the CA expired, SealBroken under another secret key.
    """
    row = Authority.objects.filter(slot=Authority.CURRENT).first()
    if row is None or row.key_sealed is None:
        raise Unavailable("The fleet has no CA yet. Start the master once, then try again.")
    cert = from_pem(row.cert_pem)
    if cert.not_valid_after_utc <= clock.now():
        raise Unavailable(
            f"The fleet's certificate authority expired on {cert.not_valid_after_utc:%Y-%m-%d}. Rotate or replace it."
        )
    return Issuer(cert, key_from_pem(unseal(bytes(row.key_sealed), CA_KEY)))


def trust() -> Trust:
    """Return the CAs that nodes must trust: the current one, then the next and the previous one during a rotation."""
    ordered = _standing(Authority.CURRENT, Authority.NEXT, Authority.PREVIOUS)
    return Trust(
        tuple(row.cert_pem for row in ordered),
        tuple(f"sha256:{row.sha256}" for row in ordered),
        tuple(row.cert_pem for row in ordered if row.slot != Authority.NEXT),
    )


def accepted() -> tuple[str, ...]:
    """Return the CAs, PEM, of which the master accepts a node: those of `trust`, and one that is being withdrawn."""
    slots = (Authority.CURRENT, Authority.NEXT, Authority.PREVIOUS, Authority.WITHDRAWN)
    return tuple(row.cert_pem for row in _standing(*slots))


def _standing(*slots: str) -> list[Authority]:
    rows = {row.slot: row for row in Authority.objects.exclude(cert_pem="")}
    return [rows[slot] for slot in slots if slot in rows]


def master() -> MasterIdentity:
    """Return the row of this master. Raises Unavailable before `authority.ensure`."""
    row = MasterIdentity.objects.first()
    if row is None:
        raise Unavailable("The master has no identity yet. Start the master once, then try again.")
    return row


def client_identity(row: MasterIdentity) -> TlsIdentity:
    """Return the certificate and key with which the master calls agents."""
    return TlsIdentity((row.client_cert_pem,), unseal(bytes(row.client_key_sealed), CLIENT_KEY))


def enroll_identity(row: MasterIdentity, bundle: tuple[str, ...]) -> TlsIdentity:
    """Return the enroll listener's identity. The root is part of the chain: a joining node compares its hash."""
    return TlsIdentity((row.enroll_cert_pem, *bundle), unseal(bytes(row.enroll_key_sealed), ENROLL_KEY))
