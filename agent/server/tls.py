"""TLS of port 9443: a front context that lives as long as the server, and one inner context per identity behind it.

A live context is never changed: another identity gets another inner context, which has to pass a handshake in memory
before it is swapped in whole. The front decides who may connect: a client certificate is required, and its key must be
one that the identity in use pins.
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
from agent.identity import BrokenIdentity, Identity
from agent.wire.base import node_server_name
from agent.wire.tls import peer_spki, pin


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path to `data` that only this process has: OpenSSL reads keys from files, and no file may change under it."""
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
    # A resumed session would pass by a CA that is trusted no more and a certificate that has expired.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    return context


def inner_context(identity: Identity) -> ssl.SSLContext:
    """A server context of `identity` that has passed a handshake in memory. BrokenIdentity says why it has not."""
    context = _base()
    try:
        with _as_file("".join((*identity.chain, identity.key_pem.decode())).encode()) as path:
            context.load_cert_chain(path)
        context.load_verify_locations(cadata="".join(identity.ca_bundle))
        _prove(context, identity)
    except ssl.SSLError as error:
        raise BrokenIdentity(f"TLS refuses the identity ({error.reason or error}); re-pair the node") from error
    return context


log = logging.getLogger(__name__)

NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which the module ssl does not name."""


def _prove(server_context: ssl.SSLContext, identity: Identity) -> None:
    """A client that trusts the bundle must accept the server's certificate. ssl.SSLError when it does not.

    The time is left out: a node whose certificate has expired serves on, so that its master may let it back in by its
    pin alone. Who checks the time does so at the other end.
    """
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT | NO_CHECK_TIME
    client_context.load_verify_locations(cadata="".join(identity.ca_bundle))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(up, down, server_side=True)
    client = client_context.wrap_bio(down, up, server_hostname=node_server_name(identity.node_uid))
    # The server has the last word and would now ask for the master's certificate, which this client has not: in
    # TLS 1.3 the client's part is over by then.
    for _ in range(4):
        try:
            client.do_handshake()
            return
        except ssl.SSLWantReadError:
            pass
        with suppress(ssl.SSLWantReadError):
            server.do_handshake()
    raise ssl.SSLError("the handshake in memory did not end")


OFFER_SECONDS = 60.0
"""How long a certificate that waits is shown before the one in use is shown again."""


@dataclass(frozen=True)
class _Offer:
    """An identity shown on trial, until a moment of the monotonic clock."""

    context: ssl.SSLContext
    spki: str
    until: float


class Door:
    """Who may come in now. `context` goes to ``create_server`` and stays; `swap` changes what is behind it."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._inner = inner_context(identity)
        self._offered: _Offer | None = None
        self._seen: weakref.WeakKeyDictionary[object, str | None] = weakref.WeakKeyDictionary()
        self._shown: weakref.WeakKeyDictionary[object, str] = weakref.WeakKeyDictionary()
        self.context = _base()
        # Called for each handshake, with or without a server name; without it the front has no certificate to show.
        self.context.sni_callback = self._choose
        pin(self.context, self._is_let_in)

    @property
    def identity(self) -> Identity:
        """The identity in use."""
        return self._identity

    def swap(self, identity: Identity) -> None:
        """Use `identity` for every handshake from now on. BrokenIdentity: the old one stays. Close old connections."""
        inner = inner_context(identity)
        self._identity, self._inner = identity, inner
        self.withdraw()

    def offer(self, identity: Identity, seconds: float = OFFER_SECONDS) -> None:
        """Show `identity` to new connections for a while, to see whether the master takes it. BrokenIdentity.

        The one in use stays in use; it is shown again when the time is over, so that a master that does not take the
        new one is not locked out.
        """
        self._offered = _Offer(inner_context(identity), identity.spki, monotonic() + seconds)

    def withdraw(self) -> None:
        """Show the identity in use to new connections."""
        self._offered = None

    def shown(self, transport: asyncio.BaseTransport) -> str | None:
        """The fingerprint of this agent's own key in that connection's handshake."""
        tls = transport.get_extra_info("ssl_object")
        return None if tls is None else self._shown.get(tls)

    def admits(self, request: web.Request) -> bool:
        """Whether the key behind this request's connection is pinned now: pins may have changed since the handshake."""
        return request.transport is not None and self.knows(request.transport)

    def knows(self, transport: asyncio.BaseTransport) -> bool:
        """`admits`, for a connection."""
        tls = transport.get_extra_info("ssl_object")
        if tls is None:
            return False
        # Reading a certificate costs more than a short request; the key of a connection never changes.
        if tls not in self._seen:
            self._seen[tls] = peer_spki(tls)
        spki = self._seen[tls]
        return spki is not None and self._is_master(spki)

    def _choose(self, tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, front: ssl.SSLContext) -> None:
        offered = self._offered
        if offered is not None and offered.until <= monotonic():
            log.warning("nobody took the certificate that waits; the one in use is shown again")
            self._offered = offered = None
        tls.context = self._inner if offered is None else offered.context
        self._shown[tls] = self._identity.spki if offered is None else offered.spki

    def _is_let_in(self, spki: str) -> bool:
        if self._is_master(spki):
            return True
        # Its certificate is of this fleet's CA: a master before its key was told to this node, or a stolen CA key.
        log.warning("a caller of this fleet was turned away: its key %s is not the master's", spki)
        return False

    def _is_master(self, spki: str) -> bool:
        return spki in self._identity.master_pins
