"""The agent's identity: key, certificate, trusted CAs and master keys. Written whole, activated by one rename.

``identity/`` contains one folder per identity, with a random name and never changed after it was written, and the links
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
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from agent.clock import now
from agent.common.files import sync_dir, write_bytes
from agent.common.keys import BadKey, key_from_pem, key_to_pem, new_key, spki_of
from agent.common.node_ids import is_node_id
from agent.state import ensure_private_dir
from agent.wire.base import node_server_name
from agent.wire.enroll import MasterSpki

_KEY, _CHAIN, _CA, _ABOUT = "key.pem", "chain.pem", "ca.pem", "about.json"
_UID = re.compile(r"[0-9a-fA-F-]{8,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class AgentIdentityBroken(Exception):
    """An identity that cannot be used; the text gives the reason and the fix."""


class MissingIdentity(Exception):
    """The state folder has not joined a master."""


def _own_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Return the key in `pem`. Raises AgentIdentityBroken."""
    try:
        return key_from_pem(pem)
    except BadKey as error:
        raise AgentIdentityBroken(f"{error}; re-pair the node (join --rekey)") from error


def in_groups(spki: str) -> str:
    """Return a fingerprint in groups of four, as a person compares it."""
    return " ".join(spki[start : start + 4] for start in range(0, len(spki), 4))


def make_csr(key: ec.EllipticCurvePrivateKey, node_id: str) -> str:
    """Return a signing request for `key`. The master uses its public key and nothing else."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node_id)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(Encoding.PEM).decode()


def certificate_sha256(certificate: x509.Certificate) -> str:
    """Return SHA-256 of the certificate's DER in lower hex: the CA hash of a join command without ``sha256:``."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def fleet_id(ca: x509.Certificate) -> str:
    """Return the short name of a fleet in labels: the first 16 hex digits of its CA's hash."""
    return certificate_sha256(ca)[:16]


def read_certificates(pem: Sequence[str]) -> tuple[x509.Certificate, ...]:
    """Return the certificates of several PEM texts, one each. Raises AgentIdentityBroken."""
    try:
        return tuple(x509.load_pem_x509_certificate(text.encode()) for text in pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise AgentIdentityBroken("a certificate cannot be read") from error


@dataclass(frozen=True)
class Identity:
    """One complete identity. `chain` starts with the node's certificate; a master must chain to `ca_bundle`.

    `fleet` is set at the join and kept over rekeys and CA rotations, so that labels of running engines stay correct.
    `joined_by` is the digest of the join token: the same token again is a repeat of the same join.
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
            raise AgentIdentityBroken("the node id or uid is invalid")
        if not self.chain or not self.ca_bundle:
            raise AgentIdentityBroken("the certificate chain or the CA bundle is empty")
        for pin in (self.master.current, self.master.next):
            if pin is not None and not _SHA256.fullmatch(pin):
                raise AgentIdentityBroken("the master's key fingerprint is not a SHA-256 in lower hex")
        try:
            public = self.certificate.public_key()
        except (ValueError, UnsupportedAlgorithm) as error:
            raise AgentIdentityBroken("the certificate's key cannot be read") from error
        if not isinstance(public, ec.EllipticCurvePublicKey) or spki_of(public) != spki_of(_own_key(self.key_pem)):
            raise AgentIdentityBroken("the certificate has another key; re-pair the node (join --rekey)")

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
        return spki_of(_own_key(self.key_pem))

    @cached_property
    def not_after(self) -> str:
        """Expiry of the certificate, RFC 3339."""
        return self.certificate.not_valid_after_utc.isoformat().replace("+00:00", "Z")

    @property
    def has_expired(self) -> bool:
        """Return whether the certificate has expired."""
        return self.certificate.not_valid_after_utc < now()

    @cached_property
    def trust_bundle_hash(self) -> str:
        """SHA-256 over the sorted hashes of the CAs in lower hex; the order of the bundle does not matter."""
        return hashlib.sha256("\n".join(sorted(map(certificate_sha256, self.authorities))).encode()).hexdigest()

    @cached_property
    def master_pins(self) -> frozenset[str]:
        """The pinned keys of the master."""
        return frozenset(pin for pin in (self.master.current, self.master.next) if pin)


def check_issuers(identity: Identity) -> None:
    """Check that each certificate of the chain is signed by the next, the last by a CA. Raises AgentIdentityBroken."""
    if not is_trusted(read_certificates(identity.chain), identity.authorities):
        raise AgentIdentityBroken("the certificate is not signed by a CA of the bundle")


def check_name(identity: Identity) -> None:
    """Check that the certificate is for the node. Raises AgentIdentityBroken."""
    try:
        names = identity.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError) as error:
        raise AgentIdentityBroken("the certificate names no node") from error
    if node_server_name(identity.node_uid) not in names.get_values_for_type(x509.DNSName):
        raise AgentIdentityBroken("the certificate is for another node")


def is_trusted(chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]) -> bool:
    """Return whether one of `authorities` signed the first certificate of `chain`, directly or by intermediates."""
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
        """Return the identity in use. Raises MissingIdentity before a join, AgentIdentityBroken for an unusable one."""
        name = self.current_name()
        if name is None:
            raise MissingIdentity("this machine has not joined a master; run mirbad-agent join first")
        return self._read(name)

    def load_if_any(self) -> Identity | None:
        """Return the identity in use, None before a join. Raises AgentIdentityBroken."""
        return None if self.current_name() is None else self.load()

    def stage(self, identity: Identity) -> str:
        """Write `identity` under a new name, link it as ``next`` and return the name. Raises OSError."""
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
        """Return name and identity of the staged one; None without one. Raises AgentIdentityBroken."""
        name = self._target("next")
        return None if name is None else (name, self._read(name))

    def promote(self, expected: str | None = None) -> Identity:
        """Make ``next`` the identity in use, by one rename. Raises MissingIdentity when `expected` is not staged."""
        name = self._target("next")
        if name is None or expected not in (None, name):
            raise MissingIdentity("no identity is staged")
        identity = self._read(name)
        (self.folder / "next").rename(self.folder / "current")
        sync_dir(self.folder)
        self._prune()
        return identity

    def replace(self, identity: Identity) -> str:
        """Put `identity` into use by one rename, keep the staged one, and return the new name. Raises OSError."""
        name = self._write(identity)
        self._link("current", name)
        self._prune()
        return name

    def drop_next(self) -> None:
        """Delete the staged identity; the one in use stays."""
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "next").unlink()
            sync_dir(self.folder)
        self._prune()

    def install(self, identity: Identity) -> Identity:
        """Stage and promote `identity`."""
        self.stage(identity)
        return self.promote()

    def _target(self, link: str) -> str | None:
        try:
            return (self.folder / link).readlink().name
        except FileNotFoundError:
            return None
        except OSError as error:
            raise AgentIdentityBroken(
                f"{self.folder / link} is not the link it should be ({error.strerror})"
            ) from error

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
            raise AgentIdentityBroken(f"{error.filename} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise AgentIdentityBroken(f"{folder} has no usable identity; re-pair the node (join --rekey)") from error

    def _prune(self) -> None:
        kept = {self._target("current"), self._target("next")}
        for folder in self.folder.glob("id-*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)
        for temporary in (*self.folder.glob(".next-*"), *self.folder.glob(".current-*")):
            with contextlib.suppress(OSError):
                temporary.unlink()


def split_pem(text: str) -> tuple[str, ...]:
    """Return the certificates of a PEM file, one text each."""
    pattern = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
    return tuple(f"{block}\n" for block in pattern.findall(text))


def _joined(pem: Sequence[str]) -> bytes:
    return "".join(text if text.endswith("\n") else f"{text}\n" for text in pem).encode()


def token_digest(token: str) -> str:
    """Return SHA-256 of a join token in lower hex: the token itself is never stored."""
    return hashlib.sha256(token.encode()).hexdigest()


class PendingKey:
    """The key of a join (or rotation) without a certificate yet, kept for repeats after a lost response.

    It belongs to one token (or rotation id); another token gets another key.
    """

    def __init__(self, state_dir: Path, name: str = "pending-key.json") -> None:
        self.path = state_dir / "identity" / name

    def find(self, token: str) -> ec.EllipticCurvePrivateKey | None:
        """Return the stored key, if it is of `token`."""
        try:
            stored = json.loads(self.path.read_bytes())
            if stored["token"] == token_digest(token):
                return _own_key(stored["key"].encode())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, AgentIdentityBroken):
            pass  # unusable: a new one replaces it
        return None

    def take(self, token: str) -> ec.EllipticCurvePrivateKey:
        """Return the key for `token`: the stored one, or a new one that is on disk before this returns."""
        if (stored := self.find(token)) is not None:
            return stored
        key = new_key()
        ensure_private_dir(self.path.parent)
        write_bytes(self.path, json.dumps({"token": token_digest(token), "key": key_to_pem(key).decode()}).encode())
        return key

    def drop(self) -> None:
        """Delete the key: the join is complete."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        if self.path.parent.is_dir():
            sync_dir(self.path.parent)


def read_machine_id() -> str:
    """Return SHA-256 of this machine's id, so that a copied state folder is noticed; empty without an id."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError):
            if text := Path(path).read_text().strip():
                return hashlib.sha256(f"mirbad-agent:{text}".encode()).hexdigest()
    return ""
