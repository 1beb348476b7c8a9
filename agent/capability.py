"""``capabilities``: the hardware and the abilities of this node, in one message."""

import asyncio
import logging
import os
import platform
import shutil
import socket
from pathlib import Path

from agent import admission, model_folders, patience, unreadable
from agent.common import budget, reason
from agent.common.budget import GIB
from agent.config import AgentConfig
from agent.deliveries import confinement, docker_engine
from agent.deliveries.docker_engine import DockerState
from agent.model_folders import Listing
from agent.runtimes import RUNTIMES
from agent.telemetry import cores, fabrics, gpu, host, links, memory
from agent.telemetry.nvml import Card, Cards
from agent.wire.capability import (
    Capabilities,
    Delivery,
    Feature,
    GpuCapability,
    MemoryModel,
    Runtime,
    RuntimeCapability,
)

_ROOT_SECONDS = 3.0

_log = logging.getLogger("mirbad.agent.capability")
_warned_unwritable: set[Path] = set()


async def read_capabilities(config: AgentConfig) -> Capabilities:
    """Read the capabilities now. An unreadable part is None or a problem in a sentence; nothing raises."""
    reading, container, listing = await asyncio.gather(
        memory.read(config),
        docker_engine.read_state(config.docker_host),
        asyncio.to_thread(model_folders.of_node, config),
    )
    return await asyncio.to_thread(_assemble, config, reading, container, listing)


def _assemble(
    config: AgentConfig, reading: memory.GpuReading, container: DockerState, listing: Listing
) -> Capabilities:
    cards, problem, decision = reading.cards, reading.problem, reading.decision
    runtimes = tuple(
        _runtime(config, runtime, delivery, container, bool(cards and cards.cards))
        for runtime in RUNTIMES
        for delivery in Delivery
    )
    gpus = tuple(_gpu(card, cards) for card in (cards.cards if cards else ()))
    stated = fabrics.warnings(config.fabrics, config.state_dir, config.sysfs_root)
    slow = reason.coded("pcie_link_slow", links.warnings(gpus))
    late = reason.coded("gpu_driver_slow", filter(None, (gpu.slow_warning(),)))
    open_ = reason.coded("engines_have_internet", _network_warnings(config, container))
    unusable = reason.coded("fabric_unusable", stated)
    warnings = (*_warnings(config, listing), *open_, *slow, *late, *unusable)
    healthy = not warnings and all(item.problem is None for item in gpus)
    return Capabilities(
        os=_os_name(),
        arch=platform.machine(),
        hostname=socket.gethostname(),
        cpu_count=cores.usable_cpus(),
        memory_bytes=host.total_memory_bytes() or 0,
        memory_model=decision.model,
        memory_model_reason=decision.reason,
        gpus=gpus,
        gpu_problem=problem,
        runtimes=runtimes,
        features=_features(config, decision.model, container),
        folders=listing.folders,
        models_root=str(config.models_root),
        allow_tag_pulls=config.allow_tag_pulls,
        memory_reserve_bytes=admission.owner_reserve(config),
        approved_images=config.approved_images,
        allowed_args=config.allowed_args,
        allowed_env=config.allowed_env,
        warnings=warnings,
        warning_codes=reason.codes(warnings),
        fabrics=fabrics.capabilities(config.fabrics, config.state_dir, config.sysfs_root),
        health="ok" if healthy else "degraded",
    )


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _gpu(card: Card, cards: Cards | None) -> GpuCapability:
    return GpuCapability(
        uuid=card.uuid,
        index=card.index,
        name=card.name,
        memory_bytes=card.total_bytes,
        # An unreadable card is not taken for integrated: only an integrated one answers "not supported".
        shares_host_memory=None if card.problem else card.integrated if card.total_bytes is None else False,
        compute_capability=card.compute_capability,
        driver_version=cards.driver_version if cards else None,
        parent_uuid=card.parent_uuid,
        pci_address=card.pci_address,
        pcie=links.to_wire(card.link),
        lost=card.lost,
        problem=card.problem,
        problem_code=card.code,
        recovery=card.recovery,
        xid=card.xid,
    )


def _runtime(
    config: AgentConfig, runtime: Runtime, delivery: Delivery, container: DockerState, has_gpus: bool
) -> RuntimeCapability:
    found = RUNTIMES[runtime].availability(config, delivery)
    problem = found.problem
    if problem is None and delivery is Delivery.CONTAINER:
        problem = container.problem or _no_gpus_in_containers(runtime, container, has_gpus)
    return RuntimeCapability(
        runtime=runtime, delivery=delivery, available=problem is None, version=found.version, problem=problem
    )


def _no_gpus_in_containers(runtime: Runtime, container: DockerState, has_gpus: bool) -> str | None:
    if runtime is Runtime.VLLM and has_gpus and container.gives_gpus is False:
        return docker_engine.NO_TOOLKIT
    return None


def _features(config: AgentConfig, model: MemoryModel, container: DockerState) -> tuple[Feature, ...]:
    """Return the features beyond the base. Four of them apply to nodes with discrete GPUs only."""
    features = [Feature.DELIVERY_PROCESS, Feature.FOLDERS, Feature.FOLDER_SHAPES, Feature.PKI_ROTATE]
    features += [Feature.DOWNLOADS, Feature.IMAGES, Feature.REPLICAS_SHARDS]
    features += [Feature.AUDIT_WITNESS, Feature.AUDIT_BREAKS]
    if container.problem is None:
        features.append(Feature.DELIVERY_CONTAINER)
    if model is MemoryModel.DISCRETE:
        features += [Feature.GPUS_UUIDS, Feature.ADMISSION_DISCRETE, Feature.LAUNCH_ENV]
        if not config.allow_tag_pulls:
            features.append(Feature.IMAGES_DIGEST_PINNED)
    return tuple(features)


def _warnings(config: AgentConfig, listing: Listing) -> tuple[str, ...]:
    root = (listing.problem,) if listing.problem else _root_warnings(config.models_root)
    return (
        *reason.coded("models_root_unusable", root),
        *listing.changed,
        *reason.coded("program_missing", path_warnings(config)),
        *reason.coded("reserve_too_large", _reserve_warnings(config)),
        *reason.coded("engines_unconfined", _confinement_warnings(config)),
    )


def _network_warnings(config: AgentConfig, container: DockerState) -> tuple[str, ...]:
    if container.problem is not None or container.isolates or config.engine_internet:
        return ()
    text = (
        "Containers of engines have the internet: Docker without root, or Docker Desktop, cannot keep it from them. "
        "Use Docker Engine, or set engine_internet in agent.json to accept it."
    )
    return (text,)


def _confinement_warnings(config: AgentConfig) -> tuple[str, ...]:
    """Return a warning for each thing that engines can reach because this machine cannot keep it from them."""
    return confinement.means(config).problems


def _reserve_warnings(config: AgentConfig) -> tuple[str, ...]:
    owner, total = admission.owner_reserve(config), host.total_memory_bytes()
    if not budget.reserves_all(owner, total):
        return ()
    quarter = budget.host_reserve(total) / GIB
    warning = (
        f"memory_reserve_gib in agent.json is {config.memory_reserve_gib:g} GiB, all memory of this node, so "
        f"{quarter:.1f} GiB are reserved instead. Remove it, or set less."
    )
    return (warning,)


def path_warnings(config: AgentConfig) -> tuple[str, ...]:
    """Return a warning for each program in ``agent.json`` that does not exist, at join and in the node's warnings."""
    found = []
    for runtime, given in ((Runtime.LLAMA_CPP, config.llama_server), (Runtime.VLLM, config.vllm_command)):
        problem = RUNTIMES[runtime].availability(config, Delivery.PROCESS).problem if given else None
        if problem is not None:
            found.append(problem)
    # A bare name may be missing: a machine without GPUs has no nvidia-smi.
    if "/" in config.nvidia_smi and shutil.which(config.nvidia_smi) is None:
        found.append(f"{config.nvidia_smi} (nvidia_smi in agent.json) does not exist on this node.")
    return tuple(found)


def _root_warnings(root: Path) -> tuple[str, ...]:
    try:
        return patience.within(_ROOT_SECONDS, f"models root {root}", lambda: _root_state(root))
    except OSError as error:
        return (unreadable.why(root, error),)


def _root_state(root: Path) -> tuple[str, ...]:
    if not root.is_dir():
        return (f"The models root {root} does not exist on this node. Create it, or set models_root in agent.json.",)
    if not os.access(root, os.W_OK | os.X_OK):
        warning = (
            f"The agent (uid {os.getuid()}) cannot write to the models root {root}, so downloads fail. Make it "
            "writable for the agent's user, and add it to ReadWritePaths of the agent's unit."
        )
        if root not in _warned_unwritable:
            _warned_unwritable.add(root)
            _log.warning("%s", warning, extra={"id": 2630})
        return (warning,)
    return ()
