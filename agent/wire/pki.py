"""Changing a node's key in two phases, and what it trusts (``/agent/v1/pki``)."""

from typing import Annotated

from pydantic import Field

from agent.wire.base import Sha256Hex, WireModel
from agent.wire.enroll import MasterSpki

_Id = Annotated[str, Field(min_length=1, max_length=128)]
_Pem = Annotated[str, Field(max_length=16_384)]
_Bundle = Annotated[tuple[_Pem, ...], Field(min_length=1, max_length=8)]


class CsrOrder(WireModel):
    """``POST pki/csr``: make a key for rotation `rotation_id`. The same id again is the same key."""

    rotation_id: _Id


class CsrAnswer(WireModel):
    """The signing request of the key that waits. The master takes the public key from it and nothing else."""

    rotation_id: str
    spki_sha256: str
    csr_pem: str


class CertificateOrder(WireModel):
    """``PUT pki/certificate``: the certificate of that key (`chain`, own certificate first) and what it chains to."""

    rotation_id: _Id
    chain: _Bundle
    ca_bundle: _Bundle


class AbortOrder(WireModel):
    """``DELETE pki/next``: forget key and certificate that wait; with `rotation_id` only if they are of that."""

    rotation_id: _Id | None = None


class TrustOrder(WireModel):
    """``PUT pki/trust``: what a master must chain to, and the keys it may show, from now on."""

    ca_bundle: _Bundle
    master_spki: MasterSpki


class PkiView(WireModel):
    """``GET pki``: what the running agent works with. `next_spki_sha256` is that of a certificate that waits."""

    spki_sha256: Sha256Hex
    cert_not_after: str
    next_spki_sha256: Sha256Hex | None = None
    trust_bundle_hash: Sha256Hex
    master_spki: MasterSpki
