"""Keys of signing requests: P-256, and nothing else of a request is read."""

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import DuplicateExtension, InvalidVersion, UnsupportedGeneralNameType

from agent.common.keys import is_p256

_CSR_HASHES = (hashes.SHA256, hashes.SHA384, hashes.SHA512)


class BadRequestToSign(ValueError):
    """A certificate signing request that cannot be used; the text is the reason, for the person at that machine."""


def csr_public_key(pem: str) -> ec.EllipticCurvePublicKey:
    """Return the public key of a signing request; its names and extensions are never read.

    The signature is verified (the sender has the private key) and only P-256 is accepted. Raises BadRequestToSign.
    """
    try:
        request = x509.load_pem_x509_csr(pem.encode("ascii"))
        key = request.public_key()
        algorithm = request.signature_hash_algorithm
        signed = isinstance(algorithm, _CSR_HASHES) and request.is_signature_valid
    except (
        ValueError,
        TypeError,
        UnsupportedAlgorithm,
        InvalidVersion,
        DuplicateExtension,
        UnsupportedGeneralNameType,
    ) as error:
        raise BadRequestToSign("The certificate signing request cannot be read.") from error
    if not is_p256(key) or not isinstance(key, ec.EllipticCurvePublicKey):
        raise BadRequestToSign("The key of the certificate signing request must be P-256.")
    if not signed:
        raise BadRequestToSign("The certificate signing request is not signed by its own key with SHA-256 or better.")
    return key
