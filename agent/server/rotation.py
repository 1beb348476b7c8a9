"""Changing this node's key in two phases, and what it trusts, while it serves.

The key waits in a file of its own, the certificate as the identity ``next``. It is shown to new connections on trial,
and the first request that comes over one of them makes it the identity in use. ``kill -9`` anywhere leaves an identity
that the master pins: after a restart the one in use is shown until the master sends the certificate again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

from aiohttp import web
from cryptography import x509

from agent.clock import now, now_text
from agent.errors import AgentError
from agent.identity import (
    BrokenIdentity,
    Identity,
    IdentityStore,
    MissingIdentity,
    PendingKey,
    check_issuers,
    check_name,
    in_groups,
    is_trusted,
    key_to_pem,
    make_csr,
    spki_of,
)
from agent.server.tls import Door, inner_context
from agent.wire.errors import AgentCode
from agent.wire.pki import CertificateOrder, CsrAnswer, PkiView, TrustOrder
from agent.wire.tls import peer_chain, spki_sha256

log = logging.getLogger(__name__)

T = TypeVar("T")

HangUp = Callable[[Callable[[asyncio.BaseTransport], bool]], None]
"""Ends the connections for which the given function is true."""


class Rotation:
    """The identity in use and the one that waits. `loaded` is the name of the one in use, `busy` while it changes."""

    def __init__(self, store: IdentityStore, state_dir: Path, door: Door, hang_up: HangUp) -> None:
        self._store = store
        self._door = door
        self._hang_up = hang_up
        self._key = PendingKey(state_dir, "rotation-key.json")
        self._lock = asyncio.Lock()
        self._next: tuple[str, Identity] | None = None
        self.loaded = store.current_name()
        with suppress(BrokenIdentity):  # what waits and cannot be used is as good as nothing
            self._next = store.load_next()

    @property
    def busy(self) -> bool:
        """Whether the identity is being changed now."""
        return self._lock.locked()

    @property
    def next_spki(self) -> str | None:
        """The fingerprint of the certificate that waits."""
        return None if self._next is None else self._next[1].spki

    def view(self) -> PkiView:
        """What the running agent works with."""
        identity = self._door.identity
        return PkiView(
            spki_sha256=identity.spki,
            cert_not_after=identity.not_after,
            next_spki_sha256=self.next_spki,
            trust_bundle_hash=identity.trust_bundle_hash,
            master_spki=identity.master,
        )

    def forget(self) -> None:
        """The node was re-paired: what waited is of the former identity."""
        self._next = None
        self._key.drop()

    async def csr(self, rotation_id: str) -> CsrAnswer:
        """A signing request for the key of `rotation_id`, made at the first call; another rotation's key is dropped."""
        async with self._changing():
            if self._key.find(rotation_id) is None and self._next is not None:
                await self._drop()
            key = await asyncio.to_thread(self._key.take, rotation_id)
            csr = make_csr(key, self._door.identity.node_id)
        return CsrAnswer(rotation_id=rotation_id, spki_sha256=spki_of(key), csr_pem=csr)

    async def take_certificate(self, order: CertificateOrder, caller: asyncio.BaseTransport) -> PkiView:
        """Keep the certificate for the key that waits, and show it on trial. AgentError NOT_STAGED, INVALID_REQUEST."""
        async with self._changing():
            current = self._door.identity
            if order.chain == current.chain:
                return self.view()
            key = await asyncio.to_thread(self._key.find, order.rotation_id)
            if key is None:
                raise AgentError(AgentCode.NOT_STAGED, f"no key of rotation {order.rotation_id} waits here; begin anew")
            with _told("the certificate"):
                fresh = replace(current, key_pem=key_to_pem(key), chain=order.chain, ca_bundle=order.ca_bundle)
                _check_time(fresh)
                check_name(fresh)
                check_issuers(fresh)
                inner_context(fresh)
            _require_still_trusted(fresh, caller)
            if self._next is None or self._next[1] != fresh:
                self._next = (await _on_disk(lambda: self._store.stage(fresh)), fresh)
            self._door.offer(fresh)
        log.info("a new certificate waits for its first use; key %s", in_groups(fresh.spki))
        return self.view()

    async def abort(self, rotation_id: str | None) -> PkiView:
        """Forget what waits; with `rotation_id` only if it is of that one."""
        async with self._changing():
            if rotation_id is None or self._key.find(rotation_id) is not None:
                await self._drop()
        return self.view()

    async def trust(self, order: TrustOrder, caller: asyncio.BaseTransport) -> PkiView:
        """Trust another bundle and other master's keys from now on. AgentError INVALID_REQUEST: nothing was changed."""
        async with self._changing():
            with _told("the bundle"):
                fresh = _trusting(self._door.identity, order)
                waiting = None if self._next is None else _trusting(self._next[1], order)
            _require_still_trusted(fresh, caller)
            if fresh != self._door.identity:
                if waiting is not None:
                    self._next = (await _on_disk(partial(self._store.stage, waiting)), waiting)
                self.loaded = await _on_disk(lambda: self._store.replace(fresh))
                self._door.swap(fresh)
        # A connection made with a certificate that is trusted no more must not outlive the trust.
        self._hang_up(lambda transport: not _is_trusted_by(fresh, transport))
        log.info("%d CA(s) are trusted now, bundle %s", len(fresh.ca_bundle), fresh.trust_bundle_hash)
        return self.view()

    async def note(self, request: web.Request) -> None:
        """The first request over a connection that was shown the certificate that waits puts it into use."""
        if self._next is None or request.transport is None or self._is_old(request.transport):
            return
        async with self._changing():
            if self._next is None:
                return
            name, identity = self._next
            try:
                await _on_disk(lambda: self._store.promote(name))
            except MissingIdentity:
                return  # a rekey on this machine came in between and is taken up by the server
            self.loaded = name
            self._door.swap(identity)
            self._next = None
            await asyncio.to_thread(self._key.drop)
        log.info("the new certificate is in use; key %s, until %s", in_groups(identity.spki), identity.not_after)

    def _is_old(self, transport: asyncio.BaseTransport) -> bool:
        return self._next is None or self._door.shown(transport) != self._next[1].spki

    async def _drop(self) -> None:
        self._door.withdraw()
        self._next = None
        await _on_disk(self._store.drop_next)
        await asyncio.to_thread(self._key.drop)

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        async with self._lock:
            yield


async def _on_disk(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except OSError as error:
        raise AgentError(AgentCode.INTERNAL, f"the identity cannot be written: {error.strerror}") from error


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except BrokenIdentity as error:
        raise AgentError(AgentCode.INVALID_REQUEST, f"{what} cannot be used: {error}; nothing was changed") from error


def _trusting(identity: Identity, order: TrustOrder) -> Identity:
    fresh = replace(identity, ca_bundle=order.ca_bundle, master=order.master_spki)
    check_issuers(fresh)
    inner_context(fresh)
    return fresh


def _check_time(identity: Identity) -> None:
    certificate = identity.certificate
    if not certificate.not_valid_before_utc <= now() <= certificate.not_valid_after_utc:
        raise BrokenIdentity(
            f"it is valid from {_text(certificate.not_valid_before_utc)} to {identity.not_after}, "
            f"and this machine's clock says {now_text()}; set the clock right"
        )


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _require_still_trusted(identity: Identity, caller: asyncio.BaseTransport) -> None:
    """A master that would lock itself out is refused: it could not take that back."""
    der = _peer_der(caller)
    if der is None or spki_sha256(der) not in identity.master_pins:
        raise AgentError(AgentCode.INVALID_REQUEST, "your own key is not among the master keys; nothing was changed")
    if not _is_trusted_by(identity, caller):
        raise AgentError(AgentCode.INVALID_REQUEST, "your certificate is of no CA of the bundle; nothing was changed")


def _is_trusted_by(identity: Identity, transport: asyncio.BaseTransport) -> bool:
    der = _peer_der(transport)
    if der is None:
        return False
    others = (one for one in peer_chain(transport.get_extra_info("ssl_object")) if one != der)
    try:
        chain = [x509.load_der_x509_certificate(one) for one in (der, *others)]
    except ValueError:
        return False
    return is_trusted(chain, identity.authorities)


def _peer_der(transport: asyncio.BaseTransport) -> bytes | None:
    tls = transport.get_extra_info("ssl_object")
    return None if tls is None else tls.getpeercert(True)
