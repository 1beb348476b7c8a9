"""TLS of port 9443: a front context that lives as long as the server, and one inner context per identity.

A live context is never changed: another identity gets another inner context, which must complete a handshake in memory
before it replaces the old one. The front decides who may connect: a client certificate is required, and its key must be
pinned by the identity in use.
"""

import asyncio
import logging
import os
import ssl
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from aiohttp import web

from agent.clock import monotonic
from agent.common.tls_pins import peer_spki, pin
from agent.identity import AgentIdentityBroken, Identity
from agent.server.clocks import Clocks
from agent.wire.base import node_server_name


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """Yield a path to `data` that only this process has: OpenSSL reads keys from files, and no file may change
    meanwhile.
    """
    descriptor = os.memfd_create("mirbad-identity", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _base() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    # A resumed session would bypass a CA that is no longer trusted, and an expired certificate.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    return context


def inner_context(identity: Identity) -> ssl.SSLContext:
    """Return a server context of `identity` that completed a handshake in memory. Raises AgentIdentityBroken."""
    context = _base()
    try:
        with _as_file("".join((*identity.chain, identity.key_pem.decode())).encode()) as path:
            context.load_cert_chain(path)
        context.load_verify_locations(cadata="".join(identity.ca_bundle))
        _prove(context, identity)
    except ssl.SSLError as error:
        raise AgentIdentityBroken(f"TLS refuses the identity ({error.reason or error}); re-pair the node") from error
    return context


log = logging.getLogger(__name__)

NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the module ssl does not name."""


def _prove(server_context: ssl.SSLContext, identity: Identity) -> None:
    """Check that a client that trusts the bundle accepts the server's certificate. Raises ssl.SSLError.

    The time is not checked: a node with an expired certificate keeps serving, so that its master can readmit it by its
    pin alone. The other end checks the time.
    """
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT | NO_CHECK_TIME
    client_context.load_verify_locations(cadata="".join(identity.ca_bundle))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(up, down, server_side=True)
    client = client_context.wrap_bio(down, up, server_hostname=node_server_name(identity.node_uid))
    # The server sends last and would now request the master's certificate, which this client does not have: in
    # TLS 1.3 the client's part is complete by then.
    for _ in range(4):
        try:
            client.do_handshake()
            return
        except ssl.SSLWantReadError:
            pass
        with suppress(ssl.SSLWantReadError):
            server.do_handshake()
    raise ssl.SSLError("the handshake in memory did not complete")


OFFER_SECONDS = 60.0
"""Time that a staged certificate is shown before the one in use is shown again."""


@dataclass(frozen=True)
class _Offer:
    """An identity that is shown on trial, until a moment of the monotonic clock."""

    context: ssl.SSLContext
    spki: str
    until: float


class TlsTerminator:
    """The TLS side of the agent's port. `context` is the permanent argument of ``create_server``; `swap` changes the
    identity behind it.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._inner = inner_context(identity)
        self._offered: _Offer | None = None
        self._seen: weakref.WeakKeyDictionary[object, str | None] = weakref.WeakKeyDictionary()
        self._shown: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
        self.context = _base()
        # Called for each handshake, with or without a server name; without it the front has no certificate.
        self.context.sni_callback = self._choose
        self.clocks = Clocks()
        pin(self.context, self._is_let_in, self.clocks.note_refusal)

    @property
    def identity(self) -> Identity:
        """The identity in use."""
        return self._identity

    def swap(self, identity: Identity) -> None:
        """Use `identity` for every new handshake. Raises AgentIdentityBroken; then the old one stays."""
        inner = inner_context(identity)
        self._identity, self._inner = identity, inner
        self.withdraw()

    def offer(self, identity: Identity, seconds: float = OFFER_SECONDS) -> None:
        """Show `identity` to new connections for a while, to see whether the master accepts it. Raises
        AgentIdentityBroken.

        The one in use stays in use and is shown again afterwards, so that a master that rejects the new one is not
        locked out.
        """
        self._offered = _Offer(inner_context(identity), identity.spki, monotonic() + seconds)

    def withdraw(self) -> None:
        """Show the identity in use to new connections."""
        self._offered = None

    def shown(self, transport: asyncio.BaseTransport) -> str | None:
        """Return the fingerprint of this agent's key in that connection's handshake."""
        tls = transport.get_extra_info("ssl_object")
        return None if tls is None else self._shown.get(tls)

    def admits(self, request: web.Request) -> bool:
        """Return whether the key of this request is pinned now: pins may have changed since the handshake."""
        return request.transport is not None and self.knows(request.transport)

    def knows(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether the key of a connection is pinned now."""
        tls = transport.get_extra_info("ssl_object")
        if tls is None:
            return False
        # Parsing a certificate costs more than a short request; the key of a connection never changes.
        if tls not in self._seen:
            self._seen[tls] = peer_spki(tls)
        spki = self._seen[tls]
        return spki is not None and self._is_master(spki)

    def _choose(self, tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, front: ssl.SSLContext) -> None:
        offered = self._offered
        if offered is not None and offered.until <= monotonic():
            log.warning("no master used the staged certificate; showing the one in use again")
            self._offered = offered = None
        tls.context = self._inner if offered is None else offered.context
        self._shown[tls] = self._identity.spki if offered is None else offered.spki

    def _is_let_in(self, spki: str) -> bool:
        if self._is_master(spki):
            return True
        # Its certificate is from this fleet's CA: a master whose new key is not known here yet, or a stolen CA key.
        log.warning("refused a caller of this fleet: its key %s is not the master's", spki)
        return False

    def _is_master(self, spki: str) -> bool:
        return spki in self._identity.master_pins
