"""What a node is and can do: ``info``, ``capabilities``."""

from enum import StrEnum
from typing import Literal

from agent.wire.base import BootId, Whole, WireModel
from agent.wire.fence import Claim


class Runtime(StrEnum):
    """The engines an agent can run."""

    VLLM = "vllm"
    LLAMA_CPP = "llama.cpp"
    SIM = "sim"


class Delivery(StrEnum):
    """How an engine is run."""

    CONTAINER = "container"
    PROCESS = "process"


class MemoryModel(StrEnum):
    """Whether GPUs have memory of their own."""

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


class AgentInfo(WireModel):
    """``GET /agent/v1/info``: all that a node tells before it is approved.

    `trust_bundle_hash` is of the CAs loaded in the running agent; `next_spki_sha256` of a certificate that waits for
    its first use; `time` is the node's clock.
    """

    node_id: str
    node_uid: str
    agent_version: str
    protocol_versions: tuple[int, ...]
    boot_id: BootId
    held_claim: Claim | None
    machine_id_hash: str
    cert_not_after: str
    spki_sha256: str
    trust_bundle_hash: str
    next_spki_sha256: str | None = None
    time: str | None = None


UNNAMED_GPU = "GPU-unreadable-"
"""Begins the UUID of a card that tells none; its number or its place follows. No placement can name it."""


class PcieLink(WireModel):
    """The PCIe link of a card: lanes in use against the card's own, and the generation that card and slot allow
    together against the card's own. The generation in use is left out: it drops while a card idles.
    """

    lanes: int | None = None
    card_lanes: int | None = None
    generation: int | None = None
    card_generation: int | None = None
    bytes_per_second: Whole | None = None
    card_bytes_per_second: Whole | None = None

    @property
    def is_slow(self) -> bool:
        """Whether the link is known to have fewer lanes, or an older generation, than the card could use."""
        pairs = ((self.lanes, self.card_lanes), (self.generation, self.card_generation))
        return any(used is not None and own is not None and used < own for used, own in pairs)


class GpuCapability(WireModel):
    """One GPU, or one MIG slice in place of its card (`parent_uuid`). None is unknown; a field that cannot be read
    never drops the card. `shares_host_memory` means that it has no memory of its own.
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


class RuntimeCapability(WireModel):
    """Whether one runtime can be delivered in one way, and if not, why in words."""

    runtime: Runtime
    delivery: Delivery
    available: bool
    version: str | None = None
    problem: str | None = None


class FabricCapability(WireModel):
    """A network on which this node may share a replica with others, as its owner stated it.

    `adapters` are InfiniBand devices or network interfaces; `problem` says why it cannot be used now.
    """

    name: str
    adapters: tuple[str, ...]
    problem: str | None = None


class FolderFile(WireModel):
    """One file of a model folder; `path` is relative to the folder."""

    path: str
    size_bytes: int


class ModelFolder(WireModel):
    """One folder under the node's models root. `total_bytes` counts what is listed.

    `repository` and `commit` are of the download that filled it, None for a folder of other origin; `missing` are files
    of that download that are not there as they were verified.
    """

    name: str
    files: tuple[FolderFile, ...] = ()
    total_bytes: int = 0
    truncated: bool = False
    repository: str | None = None
    commit: str | None = None
    missing: tuple[str, ...] = ()


class Capabilities(WireModel):
    """``GET /agent/v1/capabilities``. `memory_reserve_bytes` is what the owner of the machine keeps from models."""

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
    warnings: tuple[str, ...] = ()
    fabrics: tuple[FabricCapability, ...] = ()
    health: Literal["ok", "degraded"] = "ok"
