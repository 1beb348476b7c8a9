"""Pins inside the TLS handshake: a peer whose key is not expected never gets past it, on either side.

Both classes are needed: `sslobject_class` is what asyncio (and aiohttp, uvloop) builds, `sslsocket_class` what blocking
clients build. A context with only one of them fails open for the other kind of caller.
"""

import hashlib
import ssl
from collections.abc import Callable
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

IsPinned = Callable[[str], bool]
"""Given an SPKI SHA-256 in lower hex: is this the peer that we expect?"""


def spki_sha256(certificate_der: bytes) -> str:
    """SHA-256 over the SubjectPublicKeyInfo of a DER certificate, lower hex. ValueError when it cannot be read."""
    key = x509.load_der_x509_certificate(certificate_der).public_key()
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def peer_chain(tls: Any) -> tuple[bytes, ...]:
    """The certificates that the peer sent, DER, not verified. One name for a call that moved in Python 3.13.

    Of a client's chain, seen from the server, the client's own certificate may be left out.
    """
    if hasattr(tls, "get_unverified_chain"):
        return tuple(tls.get_unverified_chain() or ())
    inner: Any = tls._sslobj  # noqa: SLF001  the only way before Python 3.13
    return tuple(certificate.public_bytes(2) for certificate in inner.get_unverified_chain() or ())


def _check(peer_der: bytes | None, is_pinned: IsPinned) -> None:
    if not peer_der:
        raise ssl.SSLError("the peer showed no certificate")
    try:
        spki = spki_sha256(peer_der)
    except ValueError as error:
        raise ssl.SSLError("the peer's certificate cannot be read") from error
    if not is_pinned(spki):
        raise ssl.SSLError(f"the peer's key is not the pinned one (SPKI {spki})")


def pin(context: ssl.SSLContext, is_pinned: IsPinned) -> None:
    """Make every handshake of `context` fail with ssl.SSLError unless `is_pinned(spki)` of the peer's key is true."""

    class PinnedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            _check(self.getpeercert(True), is_pinned)

    class PinnedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            _check(self.getpeercert(True), is_pinned)

    context.sslobject_class = PinnedObject
    context.sslsocket_class = PinnedSocket


def peer_spki(ssl_object: Any) -> str | None:
    """The SPKI of the peer of an open connection (its transport's ``ssl_object``), for a check per request."""
    der = ssl_object.getpeercert(True) if ssl_object is not None else None
    return spki_sha256(der) if der else None
