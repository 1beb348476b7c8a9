"""Joining a master: pin its CA by hash, send the token on a second connection, keep what comes back.

The first connection fetches the CA chain and nothing else. The token travels on a second one that is verified against
exactly the CA whose hash was given. Until the answer is on disk the key stays, so that a lost reply is asked for again.
"""

import hashlib
import http.client
import json
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import ValidationError

from agent.clock import now_text
from agent.identity import (
    BrokenIdentity,
    Identity,
    IdentityStore,
    MissingIdentity,
    PendingKey,
    certificate_sha256,
    check_issuers,
    check_name,
    fleet_id,
    is_node_id,
    key_to_pem,
    make_csr,
    read_certificates,
    token_digest,
)
from agent.wire.base import ENROLL_SERVER_NAME
from agent.wire.enroll import EnrollAnswer, EnrollRefusal, EnrollRequest, MachineSummary
from agent.wire.tls import peer_chain

log = logging.getLogger(__name__)

DEFAULT_ENROLL_PORT = 8443
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
RETRY_PAUSES = (1.0, 2.0, 4.0)
_ANSWER_LIMIT = 256 * 1024
_NOT_NOW = frozenset({9, 10})
"""OpenSSL's codes for a certificate that is not valid yet, or no longer."""

_CA_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class JoinFailed(Exception):
    """The join did not happen; the text says why and what to do. What was there before still stands."""


class CannotReach(JoinFailed):
    """No connection to the enroll listener, or no answer from it."""


class HashDiffers(JoinFailed):
    """The listener shows another CA than the one expected: a wrong command, or somebody in between."""


class Refused(JoinFailed):
    """The master says no; it does not say why."""


class RateLimited(JoinFailed):
    """Too many tries."""


class BadAnswer(JoinFailed):
    """The master's answer cannot be used."""


@dataclass(frozen=True)
class JoinOrder:
    """What a join command says. `node_uid` is for a rekey whose state folder is lost."""

    enroll_url: str
    ca_hash: str
    node_id: str
    token: str = field(repr=False)
    address: str | None = None
    port: int = 9443
    rekey: bool = False
    node_uid: str | None = None
    machine: MachineSummary = field(default_factory=MachineSummary)


@dataclass(frozen=True)
class Listener:
    """Where the enroll listener is."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_listener(enroll_url: str) -> Listener:
    """Host and port of an enroll URL. JoinFailed when it is none."""
    try:
        parts = urlsplit(enroll_url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise JoinFailed(f"--enroll-url is not a URL: {error}") from error
    if parts.scheme != "https" or not host:
        raise JoinFailed("--enroll-url must be of the form https://host:8443, as the master shows it")
    return Listener(host, port or DEFAULT_ENROLL_PORT)


def read_hashes(ca_hash: str) -> tuple[str, ...]:
    """The hashes of ``sha256:…[,sha256:…]``, lower hex. JoinFailed when one is not a hash."""
    parts = tuple(part.strip().lower() for part in ca_hash.split(",") if part.strip())
    if not parts or not all(map(_CA_HASH.fullmatch, parts)):
        raise JoinFailed("--ca-hash must be sha256: and 64 hex digits, as the master shows it")
    return tuple(part.removeprefix("sha256:") for part in parts)


def existing(store: IdentityStore, order: JoinOrder, *, claimed: bool) -> Identity | None:
    """The identity that makes `order` a repeat of a join that is done; None when the join has to be made.

    An identity that no master has `claimed` gives way to a new token: its request may have been rejected. JoinFailed
    when the folder belongs to another node or fleet, so that a join never replaces an identity in use.
    """
    try:
        identity = store.load_if_any()
    except BrokenIdentity as error:
        if order.rekey:
            return None
        raise JoinFailed(f"this state folder holds an identity that cannot be used: {error}") from error
    if identity is None:
        return None
    if order.rekey:
        if identity.node_id != order.node_id:
            raise JoinFailed(f"this machine is node {identity.node_id}, the rekey is for {order.node_id}")
        return None
    known = {certificate_sha256(authority) for authority in identity.authorities}
    same = identity.node_id == order.node_id and known & set(read_hashes(order.ca_hash))
    if same and (claimed or not order.token or identity.joined_by == token_digest(order.token)):
        return identity
    if not claimed:
        return None
    raise JoinFailed(
        f"this machine is already node {identity.node_id} of fleet {identity.fleet}. To give it a new key use --rekey; "
        f"to join another master stop the agent and remove {store.folder.parent} first"
    )


def join(order: JoinOrder, state_dir: Path, pause: Callable[[float], None] = time.sleep) -> Identity:
    """Join or re-pair, and return the identity that is now in use. Raises JoinFailed; OSError when the disk refuses.

    A failure leaves the identity in use as it was. The same order again finds the same key and, within the token's
    life, the same answer.
    """
    store = IdentityStore(state_dir)
    listener, expected = read_listener(order.enroll_url), read_hashes(order.ca_hash)
    uid = _uid_for_rekey(store, order) if order.rekey else None
    unsigned = _request_without_csr(order, uid)
    authority = fetch_authority(listener, expected)
    pending = PendingKey(state_dir)
    key = pending.take(order.token)
    request = unsigned.model_copy(update={"csr_pem": make_csr(key, order.node_id)})
    path = "/enroll/rekey" if order.rekey else "/enroll"
    answer = _ask_until_answered(listener, authority, path, request, pause)
    identity = store.install(_check(answer, order, key, authority, expected, store, uid))
    pending.drop()
    return identity


def _request_without_csr(order: JoinOrder, uid: str | None) -> EnrollRequest:
    """The request but for its CSR, so that a bad option is told before anything is sent or written. JoinFailed."""
    if not is_node_id(order.node_id):
        raise JoinFailed("--node-id must be 1-40 lower-case letters, digits and hyphens, first a letter or digit")
    try:
        return EnrollRequest(
            node_id=order.node_id,
            token=order.token,
            csr_pem="",
            node_uid=uid,
            address=order.address,
            port=order.port,
            machine=order.machine,
            time=now_text(),
        )
    except ValidationError as error:
        fields = ", ".join("--" + str(item["loc"][0]).replace("_", "-") for item in error.errors(include_input=False))
        raise JoinFailed(f"the join command has a value that cannot be right: {fields}") from None


def fetch_authority(listener: Listener, expected: tuple[str, ...]) -> x509.Certificate:
    """The CA certificate with one of the `expected` hashes, from the listener's chain. CannotReach, HashDiffers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent and nothing is believed but a certificate of a known hash
    with _dial(listener) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=ENROLL_SERVER_NAME) as tls:
                chain = peer_chain(tls)
        except OSError as error:
            raise CannotReach(f"{listener} does not speak TLS as an enroll listener does ({_why(error)})") from error
    for der in chain:
        if hashlib.sha256(der).hexdigest() in expected:
            return x509.load_der_x509_certificate(der)
    seen = f"sha256:{hashlib.sha256(chain[-1]).hexdigest()}" if chain else "nothing"
    raise HashDiffers(
        f"{listener} shows another CA than the one in --ca-hash (it shows {seen}). The token was not sent. Copy "
        "the join command from the master again; if it still differs, somebody stands between this machine and it"
    )


def _dial(listener: Listener) -> socket.socket:
    try:
        return socket.create_connection((listener.host, listener.port), timeout=CONNECT_SECONDS)
    except OSError as error:
        raise CannotReach(
            f"{listener} cannot be reached ({_why(error)}). Check that the master runs, that the enroll URL names it, "
            "and that no firewall stands in between"
        ) from error


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "reason", None) or error.strerror or error)


def _ask_until_answered(
    listener: Listener,
    authority: x509.Certificate,
    path: str,
    request: EnrollRequest,
    pause: Callable[[float], None],
) -> EnrollAnswer:
    """Ask again after a lost reply: the master gives the same key the same answer."""
    for seconds in (*RETRY_PAUSES, None):
        try:
            return _ask(listener, authority, path, request)
        except CannotReach as error:
            if seconds is None:
                raise
            log.warning("%s; trying again in %g s", error, seconds)
            pause(seconds)
    raise AssertionError("the last try returns or raises")


def _ask(listener: Listener, authority: x509.Certificate, path: str, request: EnrollRequest) -> EnrollAnswer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=authority.public_bytes(Encoding.PEM).decode())
    plain = _dial(listener)
    connection = http.client.HTTPConnection(listener.host, listener.port, timeout=ANSWER_SECONDS)
    try:
        tls = context.wrap_socket(plain, server_hostname=ENROLL_SERVER_NAME)
    except ssl.SSLCertVerificationError as error:
        plain.close()
        if error.verify_code in _NOT_NOW:
            raise JoinFailed(
                f"the certificate of {listener} is not valid at this machine's time ({now_text()}); check the clock. "
                "The token was not sent"
            ) from error
        raise HashDiffers(
            f"{listener} is not the enroll listener of that CA ({error.verify_message}). The token was not sent"
        ) from error
    except OSError as error:
        plain.close()
        raise CannotReach(f"{listener} broke off the TLS handshake ({_why(error)})") from error
    connection.sock = tls
    try:
        tls.settimeout(ANSWER_SECONDS)
        connection.request(
            "POST", path, json.dumps(request.to_wire()), {"Content-Type": "application/json", "Connection": "close"}
        )
        response = connection.getresponse()
        body = response.read(_ANSWER_LIMIT + 1)
        retry_after = response.getheader("Retry-After")
    except (OSError, http.client.HTTPException) as error:
        raise CannotReach(f"the connection to {listener} was lost before the answer came ({error})") from error
    finally:
        connection.close()
    return _read_answer(response.status, body, retry_after)


def _read_answer(status: int, body: bytes, retry_after: str | None) -> EnrollAnswer:
    if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
        raise CannotReach(f"the master failed on the request (HTTP {status})")
    if len(body) > _ANSWER_LIMIT:
        raise BadAnswer("the master's answer is too large")
    try:
        if status == http.HTTPStatus.OK:
            return EnrollAnswer.model_validate_json(body)
        refusal = EnrollRefusal.model_validate_json(body)
    except ValidationError as error:
        raise BadAnswer(f"the master's answer cannot be read (HTTP {status})") from error
    if refusal.code == "rate_limited":
        wait = f"{retry_after} s" if retry_after and retry_after.isdigit() else "a minute"
        raise RateLimited(f"the master takes no more tries from this address for now; try again in {wait}")
    if refusal.code == "enrollment_refused":
        raise Refused(
            "the master refused the enrollment. The token may be mistyped, used or expired, or be for another node id "
            "or purpose, or the node may be revoked. Create a new command on the master's Nodes page"
        )
    raise Refused(f"the master refused the request: {refusal.detail} ({refusal.code})")


def _uid_for_rekey(store: IdentityStore, order: JoinOrder) -> str:
    try:
        uid = order.node_uid or store.load().node_uid
    except (MissingIdentity, BrokenIdentity) as error:
        raise JoinFailed("this state folder has no usable identity: give --node-uid as the master shows it") from error
    return uid


def _check(
    answer: EnrollAnswer,
    order: JoinOrder,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    expected: tuple[str, ...],
    store: IdentityStore,
    uid: str | None,
) -> Identity:
    """`answer` as an identity, if it is for this node and this key and trusts the CA that was pinned. BadAnswer."""
    try:
        bundle = read_certificates(answer.ca_bundle)
        identity = Identity(
            node_id=order.node_id,
            node_uid=answer.node_uid,
            fleet=_fleet(store, answer.node_uid, authority),
            master=answer.master_spki,
            key_pem=key_to_pem(key),
            chain=answer.chain,
            ca_bundle=answer.ca_bundle,
            joined_by=token_digest(order.token),
        )
        check_issuers(identity)
        check_name(identity)
    except BrokenIdentity as error:
        raise BadAnswer(f"the master's answer cannot be used: {error}") from error
    if uid is not None and identity.node_uid != uid:
        raise BadAnswer(f"the master answered for the node with uid {identity.node_uid}, not {uid}")
    if not {certificate_sha256(one) for one in bundle} & set(expected):
        raise BadAnswer("the master's answer cannot be used: its CA bundle lacks the CA of --ca-hash")
    return identity


def _fleet(store: IdentityStore, node_uid: str, authority: x509.Certificate) -> str:
    """The fleet's name, kept while the node stays the same: engines that run carry it in their labels."""
    try:
        before = store.load_if_any()
    except BrokenIdentity:
        before = None
    return before.fleet if before is not None and before.node_uid == node_uid else fleet_id(authority)
