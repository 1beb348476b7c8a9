"""Pins inside the TLS handshake: a peer with an unexpected key cannot complete the handshake, on either side.

Both classes are needed: asyncio (and aiohttp, uvloop) creates an `sslobject_class`, blocking clients an
`sslsocket_class`. A context with only one of them fails open for the other kind of caller.
"""

import hashlib
import ssl
from collections.abc import Callable
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

NOT_YET_VALID, EXPIRED = 9, 10
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""

OF_TIME = frozenset({NOT_YET_VALID, EXPIRED})

IsPinned = Callable[[str], bool]
"""Predicate over an SPKI SHA-256 in lower hex: true for the expected peer."""

OnRefusal = Callable[[ssl.SSLCertVerificationError], None]
"""Called when OpenSSL refuses the peer's certificate, before the handshake fails."""


def spki_sha256(certificate_der: bytes) -> str:
    """Return SHA-256 of the SubjectPublicKeyInfo of a DER certificate in lower hex. Raises ValueError."""
    key = x509.load_der_x509_certificate(certificate_der).public_key()
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def peer_chain(tls: Any) -> tuple[bytes, ...]:
    """Return the certificates that the peer sent, in DER, not verified. One name for a call that moved in Python 3.13.

    A server may find the chain of a client without the client's own certificate.
    """
    if hasattr(tls, "get_unverified_chain"):
        return tuple(tls.get_unverified_chain())
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


def _ignore(_: ssl.SSLCertVerificationError) -> None:
    return


def pin(context: ssl.SSLContext, is_pinned: IsPinned, on_refusal: OnRefusal = _ignore) -> None:
    """Make every handshake of `context` fail with ssl.SSLError unless `is_pinned(spki)` of the peer's key is true."""

    class PinnedObject(ssl.SSLObject):
        refusal: ssl.SSLError | None = None

        def do_handshake(self) -> None:
            if self.refusal is not None:
                raise self.refusal
            try:
                super().do_handshake()
            except ssl.SSLCertVerificationError as error:
                on_refusal(error)
                if not self.server_side or error.verify_code not in OF_TIME:
                    raise
                # asyncio sends the alert, which says why, only when the handshake seems to go on.
                self.refusal = error
                raise ssl.SSLWantReadError from error
            _check(self.getpeercert(True), is_pinned)

    class PinnedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            _check(self.getpeercert(True), is_pinned)

    context.sslobject_class = PinnedObject
    context.sslsocket_class = PinnedSocket


def peer_spki(ssl_object: Any) -> str | None:
    """Return the SPKI of the peer of an open connection (its transport's ``ssl_object``), for a check per request."""
    der = ssl_object.getpeercert(True) if ssl_object is not None else None
    return spki_sha256(der) if der else None
