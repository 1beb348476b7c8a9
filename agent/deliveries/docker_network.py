"""The network of engine containers: this machine reaches them there, and they reach nothing beyond it.

An internal network has no route to anywhere, so ports cannot be published from it; the agent uses the container's own
address. Docker without root keeps its networks to itself, so there a port is published and the internet stays open.
"""

import itertools
from pathlib import Path
from typing import Any

import docker
import docker.errors
from docker.models.containers import Container

from agent.deliveries.base import DeliveryFailed, ImageSpec

NAME = "mirbad-engines"
PORT_LABEL = "mirbad.port"
_MAX_FILES = 20_000
_OPTIONS = {"com.docker.network.bridge.enable_icc": "false"}
_TMP = "/tmp"  # noqa: S108  a folder of the container
_FILES = "rw,noexec,nosuid,nodev,size=1g,mode=1777"
_COMPILED = "rw,exec,nosuid,nodev,size=8g,mode=1777"
"""For an engine that loads what it compiled. Memory is taken only as it is used."""

_CACHE = f"{_TMP}/.cache"
_CACHES = {
    "HOME": _TMP,
    "TMPDIR": _TMP,
    "XDG_CACHE_HOME": _CACHE,
    "XDG_CONFIG_HOME": f"{_TMP}/.config",
    "XDG_DATA_HOME": f"{_TMP}/.local/share",
}
_COMPILER_CACHES = {
    "USER": "engine",
    "VLLM_CACHE_ROOT": f"{_CACHE}/vllm",
    "VLLM_CONFIG_ROOT": f"{_TMP}/.config/vllm",
    "HF_HOME": f"{_CACHE}/huggingface",
    "TRITON_HOME": _TMP,
    "TRITON_CACHE_DIR": f"{_TMP}/.triton/cache",
    "TORCHINDUCTOR_CACHE_DIR": f"{_CACHE}/torchinductor",
    "TORCH_EXTENSIONS_DIR": f"{_CACHE}/torch_extensions",
    "CUDA_CACHE_PATH": f"{_TMP}/.nv/ComputeCache",
    "FLASHINFER_WORKSPACE_BASE": _TMP,
    "NUMBA_CACHE_DIR": f"{_CACHE}/numba",
    "MPLCONFIGDIR": f"{_CACHE}/matplotlib",
    "OUTLINES_CACHE_DIR": f"{_CACHE}/outlines",
}
"""Folders that vLLM and the libraries below it write to. Images set some of these to folders of their root."""


def can_isolate(info: dict[str, Any]) -> bool:
    """Return whether this machine reaches containers by their address, from Docker's own description."""
    options = info.get("SecurityOptions") or ()
    return "Docker Desktop" not in str(info.get("OperatingSystem")) and not any("rootless" in one for one in options)


def isolate(client: docker.DockerClient, settings: dict[str, Any], image: ImageSpec) -> None:
    """Put a container on the network without the internet, in place of published ports. DeliveryFailed."""
    try:
        found = client.networks.get(NAME)
    except docker.errors.NotFound:
        found = _create(client)
    if not found.attrs.get("Internal"):
        raise DeliveryFailed(
            f"Docker's network {NAME} is not internal. Remove it (docker network rm {NAME}) and start the model again; "
            "Mirbad creates it anew."
        )
    settings.pop("ports", None)
    settings["network"] = NAME
    settings["labels"] = {**settings["labels"], PORT_LABEL: str(image.container_port)}


def _create(client: docker.DockerClient) -> Any:
    try:
        return client.networks.create(NAME, driver="bridge", internal=True, options=_OPTIONS, check_duplicate=True)
    except docker.errors.APIError:
        # Another launch, or another agent of this machine, was faster.
        try:
            return client.networks.get(NAME)
        except docker.errors.NotFound:
            pass
        raise


def address(container: Container) -> tuple[str, int] | None:
    """Return the container's own address and port, None when its port is published or it has none now."""
    networks = (container.attrs.get("NetworkSettings") or {}).get("Networks") or {}
    host, port = (networks.get(NAME) or {}).get("IPAddress"), container.labels.get(PORT_LABEL)
    return (host, int(port)) if host and port else None


def harden(settings: dict[str, Any], image: ImageSpec) -> None:
    """Take all capabilities from a container and, unless the machine's owner leaves it, the image's file system."""
    settings["cap_drop"] = ["ALL"]
    settings["security_opt"] = ["no-new-privileges:true"]
    if _private(image.mounts):
        # Root in a container without capabilities reads only what belongs to it. The mounts are read-only.
        settings["cap_add"] = [*settings.get("cap_add", ()), "DAC_OVERRIDE"]
    if not image.writable_root:
        settings["read_only"] = True
        settings["tmpfs"] = {_TMP: _COMPILED if image.compiles else _FILES}
        caches = _CACHES | _COMPILER_CACHES if image.compiles else _CACHES
        settings["environment"] = {**caches, **settings["environment"]}


def _private(mounts: tuple[Path, ...]) -> bool:
    """Return whether some weights can be read by their owner only."""
    for mount in mounts:
        below = itertools.islice(mount.rglob("*"), _MAX_FILES) if mount.is_dir() else ()
        if any(not _readable(path) for path in (mount, *below)):
            return True
    return False


def _readable(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return True
    return mode & 0o005 == 0o005 if path.is_dir() else bool(mode & 0o004)
