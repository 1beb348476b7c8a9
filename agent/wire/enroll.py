"""Messages of the enroll listener (``POST /enroll``, ``POST /enroll/rekey``)."""

from typing import Annotated, Literal

from pydantic import Field

from agent.wire.base import WireModel


class GpuSummary(WireModel):
    """One GPU as a pending node reports it, for the person who approves the node."""

    uuid: str = Field(max_length=80)
    name: str = Field(max_length=120)
    memory_bytes: int | None = Field(default=None, ge=0, strict=True)


class MachineSummary(WireModel):
    """A pending node's description of itself. Shown, never trusted."""

    os: str = Field(default="", max_length=120)
    arch: str = Field(default="", max_length=40)
    hostname: str = Field(default="", max_length=255)
    agent_version: str = Field(default="", max_length=40)
    gpus: tuple[GpuSummary, ...] = Field(default=(), max_length=64)


class EnrollRequest(WireModel):
    """A node's request to join. `node_uid` is set for a rekey only. `address` is where the master connects to the
    agent.

    `time` is the node's clock: certificates depend on it, so a master refuses a clock that is far off, with both times.
    """

    node_id: str = Field(max_length=64)
    token: str = Field(max_length=200)
    csr_pem: str = Field(max_length=16_384)
    node_uid: str | None = Field(default=None, max_length=64)
    address: str | None = Field(default=None, max_length=255)
    port: Annotated[int, Field(ge=1, le=65535, strict=True)] = 9443
    machine: MachineSummary = MachineSummary()
    time: str | None = Field(default=None, max_length=40)


class MasterSpki(WireModel):
    """The SPKI SHA-256 (lower hex) of the master's client key that the agent must pin."""

    current: str
    next: str | None = None


class EnrollResponse(WireModel):
    """The identity of a node that enrolled. `chain` starts with its own certificate; all PEM."""

    node_uid: str
    chain: tuple[str, ...]
    ca_bundle: tuple[str, ...]
    master_spki: MasterSpki


class EnrollErrorBody(WireModel):
    """The response to every refused request; it reveals nothing about the reason."""

    code: Literal[
        "enrollment_refused", "rate_limited", "invalid_request", "not_found", "payload_too_large", "unavailable"
    ]
    detail: str
