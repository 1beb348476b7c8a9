"""Replacement of this node's key in two phases, and of its trust, while the agent serves.

The staged key is in a file of its own, the staged certificate is the identity ``next``. New connections see the staged
certificate on trial, and the first request over one of them makes it the identity in use. ``kill -9`` anywhere leaves
an identity that the master pins: after a restart the one in use is shown until the master sends the certificate again.
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
from agent.common.keys import key_to_pem, spki_of
from agent.common.tls_pins import peer_chain, spki_sha256
from agent.errors import AgentError
from agent.identity import (
    AgentIdentityBroken,
    Identity,
    IdentityStore,
    MissingIdentity,
    PendingKey,
    check_issuers,
    check_name,
    in_groups,
    is_trusted,
    make_csr,
)
from agent.server.tls import TlsTerminator, inner_context
from agent.wire.errors import AgentCode
from agent.wire.pki import CertificateUpdate, CsrResponse, PkiView, TrustUpdate

log = logging.getLogger(__name__)

T = TypeVar("T")

HangUp = Callable[[Callable[[asyncio.BaseTransport], bool]], None]
"""Closes the connections for which the given function is true."""


class Rotation:
    """The identity in use and the staged one. `loaded` is the name of the one in use; `busy` while it changes."""

    def __init__(self, store: IdentityStore, state_dir: Path, tls: TlsTerminator, hang_up: HangUp) -> None:
        self._store = store
        self._tls = tls
        self._hang_up = hang_up
        self._key = PendingKey(state_dir, "rotation-key.json")
        self._lock = asyncio.Lock()
        self._next: tuple[str, Identity] | None = None
        self.loaded = store.current_name()
        with suppress(AgentIdentityBroken):  # an unusable staged identity counts as none
            self._next = store.load_next()

    @property
    def busy(self) -> bool:
        """Return whether the identity is changing now."""
        return self._lock.locked()

    @property
    def next_spki(self) -> str | None:
        """The fingerprint of the staged certificate."""
        return None if self._next is None else self._next[1].spki

    def view(self) -> PkiView:
        """Return key and trust of the running agent."""
        identity = self._tls.identity
        return PkiView(
            spki_sha256=identity.spki,
            cert_not_after=identity.not_after,
            next_spki_sha256=self.next_spki,
            trust_bundle_hash=identity.trust_bundle_hash,
            master_spki=identity.master,
        )

    def forget(self) -> None:
        """Drop the staged identity: the node was re-paired, and it is of the former identity."""
        self._next = None
        self._key.drop()

    async def csr(self, rotation_id: str) -> CsrResponse:
        """Return a signing request for the key of `rotation_id`, created at the first call. Drops another rotation's
        key.
        """
        async with self._changing():
            if self._key.find(rotation_id) is None and self._next is not None:
                await self._drop()
            key = await asyncio.to_thread(self._key.take, rotation_id)
            csr = make_csr(key, self._tls.identity.node_id)
        return CsrResponse(rotation_id=rotation_id, spki_sha256=spki_of(key), csr_pem=csr)

    async def take_certificate(self, update: CertificateUpdate, caller: asyncio.BaseTransport) -> PkiView:
        """Stage the certificate of the staged key and show it on trial. Raises NOT_STAGED or INVALID_REQUEST."""
        async with self._changing():
            current = self._tls.identity
            if update.chain == current.chain:
                return self.view()
            key = await asyncio.to_thread(self._key.find, update.rotation_id)
            if key is None:
                raise AgentError(
                    AgentCode.NOT_STAGED, f"No key of rotation {update.rotation_id} is staged here. Start again."
                )
            with _refusing("The certificate"):
                fresh = replace(current, key_pem=key_to_pem(key), chain=update.chain, ca_bundle=update.ca_bundle)
                _check_time(fresh)
                check_name(fresh)
                check_issuers(fresh)
                inner_context(fresh)
            _require_still_trusted(fresh, caller)
            if self._next is None or self._next[1] != fresh:
                self._next = (await _on_disk(lambda: self._store.stage(fresh)), fresh)
            self._tls.offer(fresh)
        log.info("staged a new certificate; key %s", in_groups(fresh.spki))
        return self.view()

    async def abort(self, rotation_id: str | None) -> PkiView:
        """Delete the staged key and certificate; with `rotation_id` only those of that rotation."""
        async with self._changing():
            if rotation_id is None or self._key.find(rotation_id) is not None:
                await self._drop()
        return self.view()

    async def trust(self, update: TrustUpdate, caller: asyncio.BaseTransport) -> PkiView:
        """Replace the CA bundle and the master's keys. Raises AgentError INVALID_REQUEST and changes nothing then."""
        async with self._changing():
            with _refusing("The bundle"):
                fresh = _trusting(self._tls.identity, update)
                staged = None if self._next is None else _trusting(self._next[1], update)
            _require_still_trusted(fresh, caller)
            if fresh != self._tls.identity:
                if staged is not None:
                    self._next = (await _on_disk(partial(self._store.stage, staged)), staged)
                self.loaded = await _on_disk(lambda: self._store.replace(fresh))
                self._tls.swap(fresh)
        # A connection with a certificate that is no longer trusted must not outlive the trust.
        self._hang_up(lambda transport: not _is_trusted_by(fresh, transport))
        log.info("trusting %d CA(s) now, bundle %s", len(fresh.ca_bundle), fresh.trust_bundle_hash)
        return self.view()

    async def note(self, request: web.Request) -> None:
        """Activate the staged certificate at the first request over a connection that was shown it."""
        if self._next is None or request.transport is None or self._is_old(request.transport):
            return
        async with self._changing():
            if self._next is None:
                return
            name, identity = self._next
            try:
                await _on_disk(lambda: self._store.promote(name))
            except MissingIdentity:
                return  # a rekey on this machine happened meanwhile; the server loads it
            self.loaded = name
            self._tls.swap(identity)
            self._next = None
            await asyncio.to_thread(self._key.drop)
        log.info("the new certificate is in use; key %s, until %s", in_groups(identity.spki), identity.not_after)

    def _is_old(self, transport: asyncio.BaseTransport) -> bool:
        return self._next is None or self._tls.shown(transport) != self._next[1].spki

    async def _drop(self) -> None:
        self._tls.withdraw()
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
        raise AgentError(AgentCode.INTERNAL, f"The identity cannot be written: {error.strerror}.") from error


@contextmanager
def _refusing(subject: str) -> Iterator[None]:
    try:
        yield
    except AgentIdentityBroken as error:
        raise AgentError(
            AgentCode.INVALID_REQUEST, f"{subject} cannot be used: {error}. Nothing was changed."
        ) from error


def _trusting(identity: Identity, update: TrustUpdate) -> Identity:
    fresh = replace(identity, ca_bundle=update.ca_bundle, master=update.master_spki)
    check_issuers(fresh)
    inner_context(fresh)
    return fresh


def _check_time(identity: Identity) -> None:
    certificate = identity.certificate
    if not certificate.not_valid_before_utc <= now() <= certificate.not_valid_after_utc:
        raise AgentIdentityBroken(
            f"it is valid from {_text(certificate.not_valid_before_utc)} to {identity.not_after}, "
            f"and this machine's clock says {now_text()}; correct the clock"
        )


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _require_still_trusted(identity: Identity, caller: asyncio.BaseTransport) -> None:
    """Raise AgentError INVALID_REQUEST for a trust that locks out the caller, who could not undo it."""
    der = _peer_der(caller)
    if der is None or spki_sha256(der) not in identity.master_pins:
        raise AgentError(AgentCode.INVALID_REQUEST, "Your own key is not among the master keys. Nothing was changed.")
    if not _is_trusted_by(identity, caller):
        raise AgentError(AgentCode.INVALID_REQUEST, "No CA of the bundle issued your certificate. Nothing was changed.")


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
