"""A CA that comes from outside: its certificate and key in two files that the settings name."""

from pathlib import Path

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Unavailable
from nodes.pki.certs import Issuer
from nodes.pki.keys import key_from_pem, spki_of

log = structlog.get_logger(__name__)

_CERT, _KEY = "MIRBAD_PKI_CA_CERT_FILE", "MIRBAD_PKI_CA_KEY_FILE"
_MODE_OTHERS = 0o077


def is_configured() -> bool:
    """Whether the settings name a CA."""
    return settings().pki_ca_cert_file is not None


def certificate() -> x509.Certificate:
    """The CA certificate that the settings name. Raises Unavailable with what is wrong with it."""
    path = settings().pki_ca_cert_file
    if path is None:
        raise Unavailable(f"{_CERT} is not set.")
    try:
        cert = x509.load_pem_x509_certificate(_read(path, _CERT))
        _check(cert)
    except ValueError as error:
        raise Unavailable(f"{_CERT}: {error}.") from error
    return cert


def issuer() -> Issuer:
    """The CA that the settings name, with its key. Raises Unavailable with what is wrong with it."""
    cert, path = certificate(), settings().pki_ca_key_file
    if path is None:
        raise Unavailable(f"{_CERT} is set without {_KEY}; the master has to sign with that CA.")
    data = _read(path, _KEY)
    try:
        key = key_from_pem(data)
    except (ValueError, TypeError) as error:
        raise Unavailable(f"{_KEY}: give an elliptic-curve key as PEM, without a password.") from error
    public = cert.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey) or spki_of(public) != spki_of(key.public_key()):
        raise Unavailable(f"{_KEY} does not hold the key of the certificate in {_CERT}.")
    if path.stat().st_mode & _MODE_OTHERS:
        log.warning("others on this machine may read the CA's key; make it 0600", path=str(path))
    return Issuer(cert, key)


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unavailable(f"{name}: {path} cannot be read ({error.strerror}).") from error


def _check(cert: x509.Certificate) -> None:
    """Raises ValueError with what keeps `cert` from being the fleet's CA."""
    public = cert.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
        raise ValueError("the CA's key must be P-256")
    try:
        basic = cert.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = cert.extensions.get_extension_for_class(x509.KeyUsage).value
        cert.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound as error:
        raise ValueError("the CA certificate lacks basicConstraints, keyUsage or subjectKeyIdentifier") from error
    if not basic.ca or not usage.key_cert_sign:
        raise ValueError("the certificate may not sign others; it is no CA's")
    if cert.issuer != cert.subject:
        raise ValueError("give a root; a certificate that another CA signed is not one")
    if not cert.not_valid_before_utc <= clock.now() < cert.not_valid_after_utc:
        raise ValueError(f"the CA is valid from {cert.not_valid_before_utc} to {cert.not_valid_after_utc}, not now")
