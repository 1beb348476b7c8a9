"""``capabilities``: what this node is and can do, in one message."""

import asyncio
import logging
import os
import platform
import shutil
import socket
from pathlib import Path

from agent.config import AgentConfig
from agent.deliveries import docker_engine
from agent.deliveries.docker_engine import EngineState
from agent.downloads.folders import origin
from agent.runtimes import RUNTIMES
from agent.runtimes.source import files_of
from agent.telemetry import fabrics, host, links, memory
from agent.telemetry.nvml import Card, Cards
from agent.wire.budget import GIB
from agent.wire.capability import (
    Capabilities,
    Delivery,
    Feature,
    FolderFile,
    GpuCapability,
    MemoryModel,
    ModelFolder,
    Runtime,
    RuntimeCapability,
)

_MAX_FOLDERS = 500
_MAX_LISTED_FILES = 200

_log = logging.getLogger("mirbad.agent.capability")
_told_unwritable: set[Path] = set()


async def read_capabilities(config: AgentConfig) -> Capabilities:
    """Read all of it now. What cannot be read is None or a problem in words; nothing raises."""
    look = await memory.look(config)
    container = await docker_engine.look(config.docker_host)
    return await asyncio.to_thread(_assemble, config, look, container)


def _assemble(config: AgentConfig, look: memory.Look, container: EngineState) -> Capabilities:
    cards, problem, decision = look.cards, look.problem, look.decision
    runtimes = tuple(
        _runtime(config, runtime, delivery, container, bool(cards and cards.cards))
        for runtime in RUNTIMES
        for delivery in Delivery
    )
    gpus = tuple(_gpu(card, cards) for card in (cards.cards if cards else ()))
    stated = fabrics.warnings(config.fabrics, config.state_dir, config.sysfs_root)
    warnings = (*_warnings(config), *links.warnings(gpus), *stated)
    healthy = not warnings and all(item.problem is None for item in gpus)
    return Capabilities(
        os=_os_name(),
        arch=platform.machine(),
        hostname=socket.gethostname(),
        cpu_count=os.cpu_count() or 1,
        memory_bytes=host.total_memory_bytes() or 0,
        memory_model=decision.model,
        memory_model_reason=decision.reason,
        gpus=gpus,
        gpu_problem=problem,
        runtimes=runtimes,
        features=_features(config, decision.model, container),
        folders=list_folders(config.models_root),
        models_root=str(config.models_root),
        allow_tag_pulls=config.allow_tag_pulls,
        memory_reserve_bytes=_owner_reserve(config),
        approved_images=config.approved_images,
        warnings=warnings,
        fabrics=fabrics.capabilities(config.fabrics, config.state_dir, config.sysfs_root),
        health="ok" if healthy else "degraded",
    )


def _owner_reserve(config: AgentConfig) -> int | None:
    """What ``agent.json`` keeps from models, None when its owner says nothing."""
    return int(config.memory_reserve_gib * GIB) if "memory_reserve_gib" in config.model_fields_set else None


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
        # What cannot be read is not shared: only a part without memory of its own says "not supported".
        shares_host_memory=None if card.problem else card.integrated if card.total_bytes is None else False,
        compute_capability=card.compute_capability,
        driver_version=cards.driver_version if cards else None,
        parent_uuid=card.parent_uuid,
        pci_address=card.pci_address,
        pcie=links.to_wire(card.link),
        lost=card.lost,
        problem=card.problem,
    )


def _runtime(
    config: AgentConfig, runtime: Runtime, delivery: Delivery, container: EngineState, has_gpus: bool
) -> RuntimeCapability:
    found = RUNTIMES[runtime].availability(config, delivery)
    problem = found.problem
    if problem is None and delivery is Delivery.CONTAINER:
        problem = container.problem or _no_gpus_in_containers(runtime, container, has_gpus)
    return RuntimeCapability(
        runtime=runtime, delivery=delivery, available=problem is None, version=found.version, problem=problem
    )


def _no_gpus_in_containers(runtime: Runtime, container: EngineState, has_gpus: bool) -> str | None:
    if runtime is Runtime.VLLM and has_gpus and container.gives_gpus is False:
        return docker_engine.NO_TOOLKIT
    return None


def _features(config: AgentConfig, model: MemoryModel, container: EngineState) -> tuple[Feature, ...]:
    """What is offered beyond the base. Four flags are of nodes with discrete GPUs alone; a unified node has none."""
    features = [Feature.DELIVERY_PROCESS, Feature.FOLDERS, Feature.FOLDER_SHAPES, Feature.PKI_ROTATE]
    features += [Feature.DOWNLOADS, Feature.IMAGES, Feature.REPLICAS_SHARDS]
    if container.problem is None:
        features.append(Feature.DELIVERY_CONTAINER)
    if model is MemoryModel.DISCRETE:
        features += [Feature.GPUS_UUIDS, Feature.ADMISSION_DISCRETE, Feature.LAUNCH_ENV]
        if not config.allow_tag_pulls:
            features.append(Feature.IMAGES_DIGEST_PINNED)
    return tuple(features)


def _warnings(config: AgentConfig) -> tuple[str, ...]:
    return (*_root_warnings(config.models_root), *path_warnings(config))


def path_warnings(config: AgentConfig) -> tuple[str, ...]:
    """Paths in agent.json that lead to no program: said at join and by the node, not first at a launch."""
    found = []
    for runtime, given in ((Runtime.LLAMA_CPP, config.llama_server), (Runtime.VLLM, config.vllm_command)):
        problem = RUNTIMES[runtime].availability(config, Delivery.PROCESS).problem if given else None
        if problem is not None:
            found.append(problem)
    # A bare name may be missing: a machine without GPUs has no such program.
    if "/" in config.nvidia_smi and shutil.which(config.nvidia_smi) is None:
        found.append(f"{config.nvidia_smi} (nvidia_smi in agent.json) is not a program on this node.")
    return tuple(found)


def _root_warnings(root: Path) -> tuple[str, ...]:
    if not root.is_dir():
        return (f"The models root {root} does not exist on this node; create it, or set models_root in agent.json.",)
    if not os.access(root, os.W_OK | os.X_OK):
        warning = f"The agent (uid {os.getuid()}) cannot write the models root {root}; downloads cannot be kept there."
        if root not in _told_unwritable:
            _told_unwritable.add(root)
            _log.warning("%s", warning, extra={"id": 2630})
        return (warning,)
    return ()


def list_folders(root: Path) -> tuple[ModelFolder, ...]:
    """Model folders under `root`, links followed, at most 500 with at most 200 files named each. Blocking."""
    try:
        entries = sorted(entry for entry in root.iterdir() if not entry.name.startswith("."))
    except OSError:
        return ()
    return tuple(folder for entry in entries[:_MAX_FOLDERS] if (folder := _folder(entry)) is not None)


def _folder(path: Path) -> ModelFolder | None:
    if not path.is_dir():
        return None
    files: list[FolderFile] = []
    truncated = False
    for file in files_of(path):
        if len(files) >= _MAX_LISTED_FILES:
            truncated = True
            break
        try:
            size = file.stat().st_size
        except OSError:
            continue
        files.append(FolderFile(path=str(file.relative_to(path)), size_bytes=size))
    total = sum(file.size_bytes for file in files)
    repository, commit, missing = origin(path)
    return ModelFolder(
        name=path.name,
        files=tuple(files),
        total_bytes=total,
        truncated=truncated,
        repository=repository,
        commit=commit,
        missing=missing,
    )
