"""Replacement of a node's key in two phases, and its trust (``/agent/v1/pki``)."""

from typing import Annotated

from pydantic import Field

from agent.wire.base import Sha256Hex, WireModel
from agent.wire.enroll import MasterSpki

_Id = Annotated[str, Field(min_length=1, max_length=128)]
_Pem = Annotated[str, Field(max_length=16_384)]
_Bundle = Annotated[tuple[_Pem, ...], Field(min_length=1, max_length=8)]


class CsrRequest(WireModel):
    """``POST pki/csr``: create a key for rotation `rotation_id`. The same id again returns the same key."""

    rotation_id: _Id


class CsrResponse(WireModel):
    """The signing request of the staged key. The master uses its public key and nothing else."""

    rotation_id: str
    spki_sha256: str
    csr_pem: str


class CertificateUpdate(WireModel):
    """``PUT pki/certificate``: the certificate of the staged key (`chain`, own certificate first) and its CAs."""

    rotation_id: _Id
    chain: _Bundle
    ca_bundle: _Bundle


class RotationAbort(WireModel):
    """``DELETE pki/next``: delete the staged key and certificate; with `rotation_id` only those of that rotation."""

    rotation_id: _Id | None = None


class TrustUpdate(WireModel):
    """``PUT pki/trust``: the CAs that a master's certificate must chain to, and the keys of the master, from now on."""

    ca_bundle: _Bundle
    master_spki: MasterSpki


class PkiView(WireModel):
    """``GET pki``: key and trust of the running agent. `next_spki_sha256` is of the staged certificate."""

    spki_sha256: Sha256Hex
    cert_not_after: str
    next_spki_sha256: Sha256Hex | None = None
    trust_bundle_hash: Sha256Hex
    master_spki: MasterSpki
