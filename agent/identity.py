"""Who this agent is: key, certificate, the CAs and master keys it trusts. Written whole, put in place by one rename.

``identity/`` holds one folder per identity, named at random and never changed after it was written, and the links
``next`` (written, not yet in use) and ``current`` (in use). A ``kill -9`` anywhere leaves the old identity or the new.
"""

import contextlib
import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from agent.clock import now
from agent.state import ensure_private_dir, sync_dir, write_bytes
from agent.wire.base import node_server_name
from agent.wire.enroll import MasterSpki

_KEY, _CHAIN, _CA, _ABOUT = "key.pem", "chain.pem", "ca.pem", "about.json"
_NODE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_UID = re.compile(r"[0-9a-fA-F-]{8,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BrokenIdentity(Exception):
    """An identity that cannot be used; the text says what is wrong with it and what to do."""


class MissingIdentity(Exception):
    """The state folder has not joined a master."""


def is_node_id(text: str) -> bool:
    """Whether `text` may name a node."""
    return _NODE_ID.fullmatch(text) is not None


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """`key` as unencrypted PKCS 8."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_from_pem(data: bytes) -> ec.EllipticCurvePrivateKey:
    """The P-256 key in `data`. BrokenIdentity when it is none."""
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError) as error:
        raise BrokenIdentity("the private key cannot be read; re-pair the node (join --rekey)") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BrokenIdentity("the private key is not a P-256 key; re-pair the node (join --rekey)")
    return key


def spki_of(key: ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey) -> str:
    """SHA-256 of the key's SubjectPublicKeyInfo, lower hex: what an operator compares."""
    public = key.public_key() if isinstance(key, ec.EllipticCurvePrivateKey) else key
    return hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def in_groups(spki: str) -> str:
    """A fingerprint as a person compares it: groups of four."""
    return " ".join(spki[start : start + 4] for start in range(0, len(spki), 4))


def make_csr(key: ec.EllipticCurvePrivateKey, node_id: str) -> str:
    """A signing request for `key`. The master takes the public key from it and nothing else."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node_id)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(Encoding.PEM).decode()


def certificate_sha256(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate's DER, lower hex: the CA hash of a join command without its ``sha256:``."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def fleet_id(ca: x509.Certificate) -> str:
    """The short name of a fleet in labels: the first 16 hex digits of its CA's hash."""
    return certificate_sha256(ca)[:16]


def read_certificates(pem: Sequence[str]) -> tuple[x509.Certificate, ...]:
    """The certificates of several PEM texts, one each. BrokenIdentity when one cannot be read."""
    try:
        return tuple(x509.load_pem_x509_certificate(text.encode()) for text in pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise BrokenIdentity("a certificate cannot be read") from error


@dataclass(frozen=True)
class Identity:
    """One complete identity. `chain` is the node's certificate first; `ca_bundle` what a master must chain to.

    `fleet` is made at the join and kept over rekeys and CA rotations, so that labels of running engines stay true.
    `joined_by` is the digest of the token that it came by: the same token again means a repeat of the same join.
    """

    node_id: str
    node_uid: str
    fleet: str
    master: MasterSpki
    key_pem: bytes = field(repr=False)
    chain: tuple[str, ...] = field(repr=False)
    ca_bundle: tuple[str, ...] = field(repr=False)
    joined_by: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not is_node_id(self.node_id) or not _UID.fullmatch(self.node_uid):
            raise BrokenIdentity("the node id or uid is not one")
        if not self.chain or not self.ca_bundle:
            raise BrokenIdentity("the certificate chain or the CA bundle is empty")
        for pin in (self.master.current, self.master.next):
            if pin is not None and not _SHA256.fullmatch(pin):
                raise BrokenIdentity("the master's key fingerprint is not a SHA-256 in lower hex")
        try:
            public = self.certificate.public_key()
        except (ValueError, UnsupportedAlgorithm) as error:
            raise BrokenIdentity("the certificate's key cannot be read") from error
        if not isinstance(public, ec.EllipticCurvePublicKey) or spki_of(public) != spki_of(key_from_pem(self.key_pem)):
            raise BrokenIdentity("the certificate is of another key; re-pair the node (join --rekey)")

    @cached_property
    def certificate(self) -> x509.Certificate:
        """The node's own certificate."""
        return read_certificates(self.chain[:1])[0]

    @cached_property
    def authorities(self) -> tuple[x509.Certificate, ...]:
        """The CAs of the bundle."""
        return read_certificates(self.ca_bundle)

    @cached_property
    def spki(self) -> str:
        """The fingerprint of the node's key."""
        return spki_of(key_from_pem(self.key_pem))

    @cached_property
    def not_after(self) -> str:
        """When the certificate expires, RFC 3339."""
        return self.certificate.not_valid_after_utc.isoformat().replace("+00:00", "Z")

    @property
    def has_expired(self) -> bool:
        """Whether the certificate is past its time."""
        return self.certificate.not_valid_after_utc < now()

    @cached_property
    def trust_bundle_hash(self) -> str:
        """SHA-256 over the sorted hashes of the CAs, lower hex: the order of the bundle does not matter."""
        return hashlib.sha256("\n".join(sorted(map(certificate_sha256, self.authorities))).encode()).hexdigest()

    @cached_property
    def master_pins(self) -> frozenset[str]:
        """The keys that a master may show."""
        return frozenset(pin for pin in (self.master.current, self.master.next) if pin)


def check_issuers(identity: Identity) -> None:
    """Each certificate of the chain is signed by the next, the last by a CA of the bundle. BrokenIdentity."""
    if not is_trusted(read_certificates(identity.chain), identity.authorities):
        raise BrokenIdentity("the certificate is not signed by a CA of the bundle")


def check_name(identity: Identity) -> None:
    """The certificate is for the node. BrokenIdentity."""
    try:
        names = identity.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError) as error:
        raise BrokenIdentity("the certificate names no node") from error
    if node_server_name(identity.node_uid) not in names.get_values_for_type(x509.DNSName):
        raise BrokenIdentity("the certificate is for another node")


def is_trusted(chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]) -> bool:
    """Whether one of `authorities` signed the first certificate of `chain`, or those in between lead to one."""
    for place, certificate in enumerate(chain):
        if any(_is_issued_by(certificate, authority) for authority in authorities):
            return True
        if place + 1 == len(chain) or not _is_issued_by(certificate, chain[place + 1]):
            return False
    return False


def _is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


class IdentityStore:
    """The identities of one state folder."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "identity"

    def current_name(self) -> str | None:
        """The name of the identity in use, None before a join. Changes whenever the identity does."""
        return self._target("current")

    def load(self) -> Identity:
        """The identity in use. MissingIdentity before a join, BrokenIdentity when it cannot be used."""
        name = self.current_name()
        if name is None:
            raise MissingIdentity("this machine has not joined a master; run mirbad-agent join first")
        return self._read(name)

    def load_if_any(self) -> Identity | None:
        """`load`, but None before a join."""
        return None if self.current_name() is None else self.load()

    def stage(self, identity: Identity) -> str:
        """Write `identity` under a new name and link it as ``next``; what is in use stays. OSError as the disk says."""
        name = self._write(identity)
        self._link("next", name)
        return name

    def _write(self, identity: Identity) -> str:
        ensure_private_dir(self.folder)
        name = f"id-{secrets.token_hex(8)}"
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        about = {
            "nodeId": identity.node_id,
            "nodeUid": identity.node_uid,
            "fleet": identity.fleet,
            "masterSpki": identity.master.to_wire(),
            "joinedBy": identity.joined_by,
        }
        write_bytes(folder / _KEY, identity.key_pem)
        write_bytes(folder / _CHAIN, _joined(identity.chain))
        write_bytes(folder / _CA, _joined(identity.ca_bundle))
        write_bytes(folder / _ABOUT, json.dumps(about).encode())
        sync_dir(self.folder)
        return name

    def load_next(self) -> tuple[str, Identity] | None:
        """Name and identity of what is staged; None when nothing is. BrokenIdentity when it cannot be used."""
        name = self._target("next")
        return None if name is None else (name, self._read(name))

    def promote(self, expected: str | None = None) -> Identity:
        """Make ``next`` the identity in use, by one rename. MissingIdentity when nothing (`expected`) is staged."""
        name = self._target("next")
        if name is None or expected not in (None, name):
            raise MissingIdentity("no identity is staged")
        identity = self._read(name)
        (self.folder / "next").rename(self.folder / "current")
        sync_dir(self.folder)
        self._prune()
        return identity

    def replace(self, identity: Identity) -> str:
        """Put `identity` into use by one rename and leave what is staged alone; its name. OSError as the disk says."""
        name = self._write(identity)
        self._link("current", name)
        self._prune()
        return name

    def drop_next(self) -> None:
        """Forget what is staged; what is in use stays."""
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "next").unlink()
            sync_dir(self.folder)
        self._prune()

    def install(self, identity: Identity) -> Identity:
        """`stage` and `promote` in one."""
        self.stage(identity)
        return self.promote()

    def _target(self, link: str) -> str | None:
        try:
            return (self.folder / link).readlink().name
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BrokenIdentity(f"{self.folder / link} is not the link it should be ({error.strerror})") from error

    def _link(self, link: str, name: str) -> None:
        fresh = self.folder / f".{link}-{secrets.token_hex(4)}"
        fresh.symlink_to(name)
        fresh.rename(self.folder / link)
        sync_dir(self.folder)

    def _read(self, name: str) -> Identity:
        folder = self.folder / name
        try:
            about: Any = json.loads((folder / _ABOUT).read_bytes())
            return Identity(
                node_id=about["nodeId"],
                node_uid=about["nodeUid"],
                fleet=about["fleet"],
                master=MasterSpki.model_validate(about["masterSpki"]),
                key_pem=(folder / _KEY).read_bytes(),
                chain=split_pem((folder / _CHAIN).read_text()),
                ca_bundle=split_pem((folder / _CA).read_text()),
                joined_by=str(about.get("joinedBy", "")),
            )
        except OSError as error:
            raise BrokenIdentity(f"{error.filename} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenIdentity(f"{folder} holds no usable identity; re-pair the node (join --rekey)") from error

    def _prune(self) -> None:
        kept = {self._target("current"), self._target("next")}
        for folder in self.folder.glob("id-*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)
        for leftover in (*self.folder.glob(".next-*"), *self.folder.glob(".current-*")):
            with contextlib.suppress(OSError):
                leftover.unlink()


def split_pem(text: str) -> tuple[str, ...]:
    """The certificates of a PEM file, one text each."""
    pattern = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
    return tuple(f"{block}\n" for block in pattern.findall(text))


def _joined(pem: Sequence[str]) -> bytes:
    return "".join(text if text.endswith("\n") else f"{text}\n" for text in pem).encode()


def token_digest(token: str) -> str:
    """SHA-256 of a join token, lower hex: the token itself is never kept."""
    return hashlib.sha256(token.encode()).hexdigest()


class PendingKey:
    """The key of a join (or rotation) that has no certificate yet: kept, so that a lost reply can be asked for again.

    It belongs to one token (or rotation id); another token gets another key.
    """

    def __init__(self, state_dir: Path, name: str = "pending-key.json") -> None:
        self.path = state_dir / "identity" / name

    def find(self, token: str) -> ec.EllipticCurvePrivateKey | None:
        """The stored key, if it is of `token`."""
        try:
            stored = json.loads(self.path.read_bytes())
            if stored["token"] == token_digest(token):
                return key_from_pem(stored["key"].encode())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, BrokenIdentity):
            pass  # none that can be used: a fresh one does as well
        return None

    def take(self, token: str) -> ec.EllipticCurvePrivateKey:
        """The key for `token`: the stored one, or a fresh one that is on disk before this returns."""
        if (stored := self.find(token)) is not None:
            return stored
        key = new_key()
        ensure_private_dir(self.path.parent)
        write_bytes(self.path, json.dumps({"token": token_digest(token), "key": key_to_pem(key).decode()}).encode())
        return key

    def drop(self) -> None:
        """Forget it: the join is done."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        if self.path.parent.is_dir():
            sync_dir(self.path.parent)


def read_machine_id() -> str:
    """SHA-256 over this machine's id, so that a copied state folder is seen; empty when the machine has none."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError):
            if text := Path(path).read_text().strip():
                return hashlib.sha256(f"mirbad-agent:{text}".encode()).hexdigest()
    return ""
