"""A CA from outside: its certificate and key in two files that the settings name."""

from pathlib import Path

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from agent.common.keys import BadKey, is_p256, key_from_pem, spki_of
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Unavailable
from nodes.pki.certs import Issuer

log = structlog.get_logger(__name__)

_CERT, _KEY = "MIRBAD_PKI_CA_CERT_FILE", "MIRBAD_PKI_CA_KEY_FILE"
_MODE_OTHERS = 0o077


def is_configured() -> bool:
    """Return whether the settings name a CA."""
    return settings().pki_ca_cert_file is not None


def certificate() -> x509.Certificate:
    """Return the CA certificate that the settings name. Raises Unavailable with the problem."""
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
    """Return the CA that the settings name, with its key. Raises Unavailable with the problem."""
    cert, path = certificate(), settings().pki_ca_key_file
    if path is None:
        raise Unavailable(f"{_CERT} is set without {_KEY}, which the master needs to sign.")
    data = _read(path, _KEY)
    try:
        key = key_from_pem(data)
    except BadKey as error:
        raise Unavailable(f"{_KEY}: {error}. Use a P-256 key as PEM without a password.") from error
    public = cert.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey) or spki_of(public) != spki_of(key.public_key()):
        raise Unavailable(f"{_KEY} is not the key of the certificate in {_CERT}.")
    if path.stat().st_mode & _MODE_OTHERS:
        log.warning("the CA's key is readable by other users; set its mode to 0600", path=str(path))
    return Issuer(cert, key)


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unavailable(f"{name}: {path} cannot be read ({error.strerror}).") from error


def _check(cert: x509.Certificate) -> None:
    """Raise ValueError with the reason why `cert` cannot be the fleet's CA."""
    public = cert.public_key()
    if not is_p256(public):
        raise ValueError("the CA's key must be P-256")
    try:
        basic = cert.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = cert.extensions.get_extension_for_class(x509.KeyUsage).value
        cert.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound as error:
        raise ValueError("the CA certificate lacks basicConstraints, keyUsage or subjectKeyIdentifier") from error
    if not basic.ca or not usage.key_cert_sign:
        raise ValueError("the certificate is not a CA certificate")
    if cert.issuer != cert.subject:
        raise ValueError("the certificate must be a self-signed root")
    if not cert.not_valid_before_utc <= clock.now() < cert.not_valid_after_utc:
        raise ValueError(f"the CA is valid from {cert.not_valid_before_utc} to {cert.not_valid_after_utc}, not now")
