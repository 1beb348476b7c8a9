"""Enrollment at a master: pin its CA by hash, send the token on a second connection, store the response.

The first connection fetches the CA chain and nothing else. The token is sent on a second one that is verified against
exactly the CA with the given hash. The key stays until the response is on disk, so that the request can be repeated
after a lost response.
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
from agent.common.keys import key_to_pem
from agent.common.node_ids import NODE_ID_RULE, is_node_id
from agent.common.tls_pins import peer_chain
from agent.identity import (
    AgentIdentityBroken,
    Identity,
    IdentityStore,
    MissingIdentity,
    PendingKey,
    certificate_sha256,
    check_issuers,
    check_name,
    fleet_id,
    make_csr,
    read_certificates,
    token_digest,
)
from agent.wire.base import ENROLL_SERVER_NAME
from agent.wire.enroll import EnrollErrorBody, EnrollRequest, EnrollResponse, MachineSummary

log = logging.getLogger(__name__)

DEFAULT_ENROLL_PORT = 8443
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
RETRY_PAUSES = (1.0, 2.0, 4.0)
_ANSWER_LIMIT = 256 * 1024
_NOT_NOW = frozenset({9, 10})
"""OpenSSL's codes for a certificate that is not valid yet, or has expired."""

_CA_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class JoinFailed(Exception):
    """The join failed; the text says why and how to fix it. The previous state is unchanged."""


class CannotReach(JoinFailed):
    """The enroll listener cannot be reached, or does not respond."""


class HashDiffers(JoinFailed):
    """The listener shows another CA than the expected one: a wrong command, or an attacker in between."""


class EnrollRefused(JoinFailed):
    """The master refused the request, without a reason."""


class EnrollRateLimited(JoinFailed):
    """Too many attempts."""


class BadEnrollResponse(JoinFailed):
    """The master's response cannot be used."""


@dataclass(frozen=True)
class JoinRequest:
    """The options of a join command. `node_uid` is for a rekey after a lost state folder."""

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
class EnrollEndpoint:
    """The address of the enroll listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_endpoint(enroll_url: str) -> EnrollEndpoint:
    """Return host and port of an enroll URL. Raises JoinFailed for an invalid one."""
    try:
        parts = urlsplit(enroll_url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise JoinFailed(f"--enroll-url is not a URL: {error}") from error
    if parts.scheme != "https" or not host:
        raise JoinFailed("--enroll-url must have the form https://host:8443. Copy it from the master")
    return EnrollEndpoint(host, port or DEFAULT_ENROLL_PORT)


def read_hashes(ca_hash: str) -> tuple[str, ...]:
    """Return the hashes of ``sha256:…[,sha256:…]`` in lower hex. Raises JoinFailed for an invalid one."""
    parts = tuple(part.strip().lower() for part in ca_hash.split(",") if part.strip())
    if not parts or not all(map(_CA_HASH.fullmatch, parts)):
        raise JoinFailed("--ca-hash must be sha256: and 64 hex digits. Copy it from the master")
    return tuple(part.removeprefix("sha256:") for part in parts)


def existing(store: IdentityStore, options: JoinRequest, *, claimed: bool) -> Identity | None:
    """Return the identity that makes `options` a repeat of a completed join; None when the join must be made.

    An identity that no master has `claimed` is replaced for a new token: its request may have been rejected. Raises
    JoinFailed when the folder belongs to another node or fleet, so that a join never replaces an identity in use.
    """
    try:
        identity = store.load_if_any()
    except AgentIdentityBroken as error:
        if options.rekey:
            return None
        raise JoinFailed(f"the identity in this state folder cannot be used: {error}") from error
    if identity is None:
        return None
    if options.rekey:
        if identity.node_id != options.node_id:
            raise JoinFailed(f"this machine is node {identity.node_id}, the rekey is for {options.node_id}")
        return None
    known = {certificate_sha256(authority) for authority in identity.authorities}
    same = identity.node_id == options.node_id and known & set(read_hashes(options.ca_hash))
    if same and (claimed or not options.token or identity.joined_by == token_digest(options.token)):
        return identity
    if not claimed:
        return None
    raise JoinFailed(
        f"this machine is already node {identity.node_id} of fleet {identity.fleet}. For a new key use --rekey; "
        f"to join another master, stop the agent and remove {store.folder.parent} first"
    )


def join(options: JoinRequest, state_dir: Path, pause: Callable[[float], None] = time.sleep) -> Identity:
    """Join or re-pair, and return the identity that is now in use. Raises JoinFailed; OSError when the disk fails.

    A failure leaves the identity in use unchanged. The same request again uses the same key and, within the token's
    lifetime, receives the same response.
    """
    store = IdentityStore(state_dir)
    listener, expected = read_endpoint(options.enroll_url), read_hashes(options.ca_hash)
    uid = _uid_for_rekey(store, options) if options.rekey else None
    unsigned = _request_without_csr(options, uid)
    authority = fetch_authority(listener, expected)
    pending = PendingKey(state_dir)
    key = pending.take(options.token)
    request = unsigned.model_copy(update={"csr_pem": make_csr(key, options.node_id)})
    path = "/enroll/rekey" if options.rekey else "/enroll"
    answer = _ask_until_answered(listener, authority, path, request, pause)
    identity = store.install(_check(answer, options, key, authority, expected, store, uid))
    pending.drop()
    return identity


def _request_without_csr(options: JoinRequest, uid: str | None) -> EnrollRequest:
    """Return the request without its CSR, so that an invalid option fails before any effect. Raises JoinFailed."""
    if not is_node_id(options.node_id):
        raise JoinFailed(f"--node-id must be {NODE_ID_RULE}")
    try:
        return EnrollRequest(
            node_id=options.node_id,
            token=options.token,
            csr_pem="",
            node_uid=uid,
            address=options.address,
            port=options.port,
            machine=options.machine,
            time=now_text(),
        )
    except ValidationError as error:
        fields = ", ".join("--" + str(item["loc"][0]).replace("_", "-") for item in error.errors(include_input=False))
        raise JoinFailed(f"the join command has invalid values: {fields}") from None


def fetch_authority(listener: EnrollEndpoint, expected: tuple[str, ...]) -> x509.Certificate:
    """Return the CA certificate with one of the `expected` hashes. Raises CannotReach, HashDiffers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent, and only a certificate with a known hash is trusted
    with _dial(listener) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=ENROLL_SERVER_NAME) as tls:
                chain = peer_chain(tls)
        except OSError as error:
            raise CannotReach(f"{listener} is not an enroll listener ({_why(error)})") from error
    for der in chain:
        if hashlib.sha256(der).hexdigest() in expected:
            return x509.load_der_x509_certificate(der)
    seen = f"sha256:{hashlib.sha256(chain[-1]).hexdigest()}" if chain else "nothing"
    raise HashDiffers(
        f"{listener} shows another CA than the one in --ca-hash (it shows {seen}). The token was not sent. Copy "
        "the join command from the master again; if it still differs, something intercepts the connection"
    )


def _dial(listener: EnrollEndpoint) -> socket.socket:
    try:
        return socket.create_connection((listener.host, listener.port), timeout=CONNECT_SECONDS)
    except OSError as error:
        raise CannotReach(
            f"{listener} cannot be reached ({_why(error)}). Check that the master is running, that the URL is correct, "
            "and that no firewall blocks the port"
        ) from error


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "reason", None) or error.strerror or error)


def _ask_until_answered(
    listener: EnrollEndpoint,
    authority: x509.Certificate,
    path: str,
    request: EnrollRequest,
    pause: Callable[[float], None],
) -> EnrollResponse:
    """Repeat the request after a lost response: the master sends the same response for the same key."""
    for seconds in (*RETRY_PAUSES, None):
        try:
            return _ask(listener, authority, path, request)
        except CannotReach as error:
            if seconds is None:
                raise
            log.warning("%s; retrying in %g s", error, seconds)
            pause(seconds)
    raise AssertionError("the last try returns or raises")


def _ask(listener: EnrollEndpoint, authority: x509.Certificate, path: str, request: EnrollRequest) -> EnrollResponse:
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
        raise CannotReach(f"{listener} closed the connection in the TLS handshake ({_why(error)})") from error
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
        raise CannotReach(f"the connection to {listener} was lost before the response arrived ({error})") from error
    finally:
        connection.close()
    return _read_answer(response.status, body, retry_after)


def _read_answer(status: int, body: bytes, retry_after: str | None) -> EnrollResponse:
    if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
        raise CannotReach(f"the master failed on the request (HTTP {status})")
    if len(body) > _ANSWER_LIMIT:
        raise BadEnrollResponse("the master's response is too large")
    try:
        if status == http.HTTPStatus.OK:
            return EnrollResponse.model_validate_json(body)
        refusal = EnrollErrorBody.model_validate_json(body)
    except ValidationError as error:
        raise BadEnrollResponse(f"the master's response cannot be read (HTTP {status})") from error
    if refusal.code == "rate_limited":
        wait = f"{retry_after} s" if retry_after and retry_after.isdigit() else "a minute"
        raise EnrollRateLimited(f"too many attempts from this address. Try again in {wait}")
    if refusal.code == "enrollment_refused":
        raise EnrollRefused(
            "the master refused the enrollment. The token may be wrong, used, expired, or for another node id "
            "or purpose, or the node may be revoked. Create a new command on the master's Nodes page"
        )
    raise EnrollRefused(f"the master refused the request: {refusal.detail} ({refusal.code})")


def _uid_for_rekey(store: IdentityStore, options: JoinRequest) -> str:
    try:
        uid = options.node_uid or store.load().node_uid
    except (MissingIdentity, AgentIdentityBroken) as error:
        raise JoinFailed(
            "this state folder has no usable identity: give --node-uid from the node's page on the master"
        ) from error
    return uid


def _check(
    answer: EnrollResponse,
    options: JoinRequest,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    expected: tuple[str, ...],
    store: IdentityStore,
    uid: str | None,
) -> Identity:
    """Return the identity in the response. Raises BadEnrollResponse for another node, key or CA than requested."""
    try:
        bundle = read_certificates(answer.ca_bundle)
        identity = Identity(
            node_id=options.node_id,
            node_uid=answer.node_uid,
            fleet=_fleet(store, answer.node_uid, authority),
            master=answer.master_spki,
            key_pem=key_to_pem(key),
            chain=answer.chain,
            ca_bundle=answer.ca_bundle,
            joined_by=token_digest(options.token),
        )
        check_issuers(identity)
        check_name(identity)
    except AgentIdentityBroken as error:
        raise BadEnrollResponse(f"the master's response cannot be used: {error}") from error
    if uid is not None and identity.node_uid != uid:
        raise BadEnrollResponse(f"the master's response is for the node with uid {identity.node_uid}, not {uid}")
    if not {certificate_sha256(one) for one in bundle} & set(expected):
        raise BadEnrollResponse("the master's response cannot be used: its CA bundle lacks the CA of --ca-hash")
    return identity


def _fleet(store: IdentityStore, node_uid: str, authority: x509.Certificate) -> str:
    """Return the name of the fleet, unchanged while the node stays the same: running engines carry it in labels."""
    try:
        before = store.load_if_any()
    except AgentIdentityBroken:
        before = None
    return before.fleet if before is not None and before.node_uid == node_uid else fleet_id(authority)
