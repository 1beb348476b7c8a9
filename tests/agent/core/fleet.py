"""A fleet for tests: a CA, a master's client certificate, identities of nodes. Real keys, real certificates."""

import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from agent.common.keys import key_to_pem, new_key, spki_of
from agent.identity import Identity, fleet_id
from agent.wire.base import node_server_name
from agent.wire.enroll import MasterSpki
from nodes.pki import certs

UID = "7a1f4e0c-0b5e-4c39-9a43-3a1f1c7d2b10"


@dataclass(frozen=True)
class Leaf:
    """A certificate with its key."""

    key: ec.EllipticCurvePrivateKey
    cert: x509.Certificate

    @property
    def spki(self) -> str:
        return spki_of(self.key)

    @property
    def pem(self) -> str:
        return certs.to_pem(self.cert)

    def write(self, folder: Path) -> Path:
        """Certificate and key in one file, as `load_cert_chain` wants them."""
        path = folder / f"{self.spki[:16]}.pem"
        path.write_bytes(self.pem.encode() + key_to_pem(self.key))
        return path


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Fleet:
    """One CA and what it issued."""

    ca_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)

    def __post_init__(self) -> None:
        self.ca = certs.make_ca(self.ca_key, now())
        self.issuer = certs.Issuer(self.ca, self.ca_key)
        self.ca_pem = certs.to_pem(self.ca)
        self.ca_hash = f"sha256:{certs.fingerprint(self.ca)}"
        self.master = self.new_master()

    def new_master(self) -> Leaf:
        key = new_key()
        return Leaf(key, certs.issue_master_client(self.issuer, key.public_key(), now()))

    def node_leaf(self, uid: str = UID, key: ec.EllipticCurvePrivateKey | None = None) -> Leaf:
        key = key or new_key()
        return Leaf(key, certs.issue_node(self.issuer, key.public_key(), uid, now()))

    def enroll_leaf(self) -> Leaf:
        key = new_key()
        return Leaf(key, certs.issue_enroll(self.issuer, key.public_key(), (), now()))

    def identity(self, uid: str = UID, *, node_id: str = "pc-1", master: Leaf | None = None) -> Identity:
        leaf = self.node_leaf(uid)
        return Identity(
            node_id=node_id,
            node_uid=uid,
            fleet=fleet_id(self.ca),
            master=MasterSpki(current=(master or self.master).spki),
            key_pem=key_to_pem(leaf.key),
            chain=(leaf.pem,),
            ca_bundle=(self.ca_pem,),
        )

    def client_context(self, folder: Path, shown: Leaf | None) -> ssl.SSLContext:
        """A context of a master that trusts this CA and shows `shown`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_verify_locations(cadata=self.ca_pem)
        if shown is not None:
            context.load_cert_chain(shown.write(folder))
        return context


def server_name(uid: str = UID) -> str:
    return node_server_name(uid)
