"""The identity and the abilities of a node: ``info``, ``capabilities``."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from agent.wire.base import BootId, Whole, WireModel
from agent.wire.fence import ReportedClaim


class Runtime(StrEnum):
    """The engines that an agent can run."""

    VLLM = "vllm"
    LLAMA_CPP = "llama.cpp"
    SIM = "sim"


class Delivery(StrEnum):
    """The ways to run an engine."""

    CONTAINER = "container"
    PROCESS = "process"


class MemoryModel(StrEnum):
    """Shared or separate memory of GPUs and host."""

    UNIFIED = "unified"
    DISCRETE = "discrete"


class Feature(StrEnum):
    """Feature flags beyond the base of protocol 1."""

    GPUS_UUIDS = "gpus.uuids"
    ADMISSION_DISCRETE = "admission.discrete"
    LAUNCH_ENV = "launch.env"
    IMAGES_DIGEST_PINNED = "images.digest-pinned"
    DELIVERY_PROCESS = "delivery.process"
    DELIVERY_CONTAINER = "delivery.container"
    FOLDERS = "folders"
    FOLDER_SHAPES = "folders.shapes"
    PKI_ROTATE = "pki.rotate"
    DOWNLOADS = "downloads"
    IMAGES = "images"
    REPLICAS_SHARDS = "replicas.shards"
    AUDIT_WITNESS = "audit.witness"
    AUDIT_BREAKS = "audit.breaks"


class AgentInfo(WireModel):
    """``GET /agent/v1/info``: everything that a node reports before it is approved.

    `trust_bundle_hash` is of the CAs loaded in the running agent, `next_spki_sha256` of a staged certificate before its
    first use; `time` is the node's clock.
    """

    node_id: str
    node_uid: str
    agent_version: str
    protocol_versions: tuple[int, ...]
    boot_id: BootId
    held_claim: ReportedClaim | None
    machine_id_hash: str
    cert_not_after: str
    spki_sha256: str
    trust_bundle_hash: str
    next_spki_sha256: str | None = None
    time: str | None = None


UNNAMED_GPU = "GPU-unreadable-"
"""Prefix of the UUID of a card that reports none; its number or position follows. No placement can name it."""


class PcieLink(WireModel):
    """The PCIe link of a card: lanes in use and lanes of the card; the generation that card and slot support together,
    and the card's own. The generation in use is left out: it drops while a card is idle.
    """

    lanes: int | None = None
    card_lanes: int | None = None
    generation: int | None = None
    card_generation: int | None = None
    bytes_per_second: Whole | None = None
    card_bytes_per_second: Whole | None = None

    @property
    def is_slow(self) -> bool:
        """Return whether the link is known to have fewer lanes, or an older generation, than the card supports."""
        pairs = ((self.lanes, self.card_lanes), (self.generation, self.card_generation))
        return any(used is not None and own is not None and used < own for used, own in pairs)


class GpuCapability(WireModel):
    """One GPU, or one MIG slice in place of its card (`parent_uuid`). None is unknown; an unreadable field never drops
    the card. `shares_host_memory` means that the GPU has no memory of its own.

    A `problem` that only the machine's owner can mend has a `problem_code`; `recovery` is the action that the driver
    asks for, `xid` the last fault that the kernel's log has for the card.
    """

    uuid: str
    index: int | None = None
    name: str | None = None
    memory_bytes: Whole | None = None
    shares_host_memory: bool | None = None
    compute_capability: str | None = None
    driver_version: str | None = None
    parent_uuid: str | None = None
    pci_address: str | None = None
    pcie: PcieLink | None = None
    lost: bool = False
    problem: str | None = None
    problem_code: Annotated[str, Field(max_length=40)] | None = None
    recovery: Annotated[str, Field(max_length=40)] | None = None
    xid: Whole | None = None

    @property
    def is_usable(self) -> bool:
        """Return whether a model may be placed on it: it works, as far as its driver says."""
        return not (self.lost or self.problem_code or self.uuid.startswith(UNNAMED_GPU))


class RuntimeCapability(WireModel):
    """Availability of one runtime by one delivery, with the problem as a sentence."""

    runtime: Runtime
    delivery: Delivery
    available: bool
    version: str | None = None
    problem: str | None = None


class FabricCapability(WireModel):
    """A network on which this node may share a replica with others, as configured by its owner.

    `adapters` are InfiniBand devices or network interfaces; `problem` says why the fabric cannot be used now.
    """

    name: str
    adapters: tuple[str, ...]
    problem: str | None = None


class FolderFile(WireModel):
    """One file of a model folder; `path` is relative to the folder."""

    path: str
    size_bytes: int


class ModelFolder(WireModel):
    """One folder below the node's models root. `total_bytes` is the sum of the listed files.

    `repository` and `commit` are of the download that filled the folder, None for other folders; `missing` are files of
    that download that no longer match it. `problem` says why the folder, or a part of it, cannot be looked at: its
    other files may be there.
    """

    name: str
    files: tuple[FolderFile, ...] = ()
    total_bytes: int = 0
    truncated: bool = False
    repository: str | None = None
    commit: str | None = None
    missing: tuple[str, ...] = ()
    problem: str | None = None


class Capabilities(WireModel):
    """``GET /agent/v1/capabilities``. `memory_reserve_bytes` is the memory that the machine's owner reserves.

    `allowed_args` and `allowed_env` are the owner's additions to the common list, names by engine.
    """

    os: str
    arch: str
    hostname: str
    cpu_count: int
    memory_bytes: int
    memory_model: MemoryModel
    memory_model_reason: str
    gpus: tuple[GpuCapability, ...]
    gpu_problem: str | None = None
    runtimes: tuple[RuntimeCapability, ...]
    features: tuple[Feature, ...]
    folders: tuple[ModelFolder, ...]
    models_root: str
    allow_tag_pulls: bool
    memory_reserve_bytes: Whole | None = None
    approved_images: tuple[str, ...] = ()
    allowed_args: dict[str, tuple[str, ...]] = {}
    allowed_env: dict[str, tuple[str, ...]] = {}
    warnings: tuple[str, ...] = ()
    warning_codes: tuple[str, ...] = ()
    fabrics: tuple[FabricCapability, ...] = ()
    health: Literal["ok", "degraded"] = "ok"
