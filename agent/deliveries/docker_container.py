"""Containers of engines: made, removed, measured, and what the engine says when it will not."""

import secrets
from http import HTTPStatus
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests
from docker.models.containers import Container
from docker.types import Ulimit

from agent.deliveries import docker_engine
from agent.deliveries.base import DeliveryFailed
from agent.deliveries.docker_engine import NO_TOOLKIT

LAUNCH_LABEL = "mirbad.launch"
INFINIBAND = Path("/dev/infiniband")


def create(client: docker.DockerClient, settings: dict[str, Any]) -> Container:
    """Make a container. A name that is taken is by what an earlier try of the same launch left: that is removed.

    The engine may name a container that is gone already; then another name does.
    """
    try:
        return client.containers.create(**settings)
    except docker.errors.APIError as error:
        if error.status_code != HTTPStatus.CONFLICT:
            raise
    try:
        left = client.containers.get(settings["name"])
        if left.labels.get(LAUNCH_LABEL) == settings["labels"][LAUNCH_LABEL] and left.status == "created":
            remove(left)
    except docker.errors.NotFound:
        pass
    return client.containers.create(**settings | {"name": f"{settings['name']}-{secrets.token_hex(3)}"})


def share_network(settings: dict[str, Any]) -> None:
    """Let a container use the machine's own network and InfiniBand devices: shards on other nodes must reach it."""
    settings.pop("ports", None)
    settings["network_mode"] = "host"
    if INFINIBAND.is_dir():
        settings["devices"] = [f"{INFINIBAND}:{INFINIBAND}:rwm"]
        # What adapters read and write by themselves must stay where it is in memory.
        settings["cap_add"] = ["IPC_LOCK"]
        settings["ulimits"] = [Ulimit(name="memlock", soft=-1, hard=-1)]


def used_memory(stats: Any) -> int | None:
    """Bytes that a container holds without pages that can be dropped, from the engine's stats; None is not told."""
    memory = stats.get("memory_stats") if isinstance(stats, dict) else None
    if not isinstance(memory, dict):
        return None
    details = memory.get("stats")
    if not isinstance(details, dict):
        details = {}
    usage = memory.get("usage")
    droppable = next((details[key] for key in ("inactive_file", "total_inactive_file") if key in details), 0)
    if not isinstance(usage, int):
        return None
    return max(0, usage - droppable) if isinstance(droppable, int) else usage


def remove(container: Container) -> None:
    """Remove a container and its volumes; one that is gone, or going, is removed. DeliveryFailed."""
    try:
        container.remove(force=True, v=True)
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        said = str(error).lower()
        if "already in progress" not in said and "no such container" not in said:
            raise DeliveryFailed(f"Docker could not remove the container {container.name}: {error}") from error
    except (requests.RequestException, OSError) as error:
        raise DeliveryFailed(f"Docker could not remove the container {container.name}: {error}") from error


def unreachable(error: Exception, docker_host: str | None) -> DeliveryFailed:
    """The engine did not answer, in words."""
    return DeliveryFailed(docker_engine.say(error, docker_host), code="runtime_unavailable")


def failed(error: docker.errors.APIError) -> DeliveryFailed:
    """Why a container was not started, with what to do."""
    text = str(error.explanation or error)
    low = text.lower()
    if "port is already allocated" in low or "address already in use" in low:
        return DeliveryFailed(f"The port is taken: {text}", code="port_unavailable", port_taken=True)
    if "could not select device driver" in low or "nvidia-container" in low or "unresolvable cdi devices" in low:
        return DeliveryFailed(f"{NO_TOOLKIT} Docker says: {text[:300]}", code="runtime_unavailable")
    if "no such image" in low:
        return DeliveryFailed(f"The image is not on this node any more: {text[:300]}", code="pull_failed")
    return DeliveryFailed(f"Docker could not start the container: {text[:400]}")
