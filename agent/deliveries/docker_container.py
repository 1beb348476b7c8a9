"""Containers of engines: creation, removal, memory, and Docker's errors as sentences."""

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests
from docker.models.containers import Container
from docker.types import Ulimit

from agent.deliveries import docker_engine, docker_gpus
from agent.deliveries.base import DeliveryFailed, DriverVersions

LAUNCH_LABEL = "mirbad.launch"
_DOUBT_SECONDS: Mapping[int | None, float] = {0: 15.0, 143: 15.0, 137: 3.0}
"""By exit code: ended on SIGTERM, or killed because it ignored that. Any other code is the engine's own."""
_CLEANING_UP = timedelta(seconds=60)
"""Time in which Docker, after a start, ends containers that a killed Docker left running."""
INFINIBAND = Path("/dev/infiniband")


def create(client: docker.DockerClient, settings: dict[str, Any]) -> Container:
    """Create a container. A taken name belongs to an earlier try of the same launch, which is removed.

    Docker may report a conflict with a container that is already gone; then another name is used.
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
    """Give a container the machine's own network and InfiniBand devices: shards on other nodes must reach it."""
    settings.pop("ports", None)
    settings["network_mode"] = "host"
    if INFINIBAND.is_dir():
        settings["devices"] = [f"{INFINIBAND}:{INFINIBAND}:rwm"]
        # Memory that adapters read and write directly must not be moved or swapped.
        settings["cap_add"] = ["IPC_LOCK"]
        settings["ulimits"] = [Ulimit(name="memlock", soft=-1, hard=-1)]


def used_memory(stats: Any) -> int | None:
    """Return the bytes that a container uses without reclaimable pages, from Docker's stats; None is unknown."""
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


def ended_with_docker(state: Mapping[str, Any], docker_started: str | None) -> bool:
    """Return whether a container with this `State` ended because Docker was restarted.

    It was started before Docker was, and not running any more when Docker was up again. One that survived a restart
    (live-restore) and ended later by itself has a later end.
    """
    began, ended, restarted = (
        _time(text) for text in (state.get("StartedAt"), state.get("FinishedAt"), docker_started)
    )
    if began is None or ended is None or restarted is None:
        return False
    return began < restarted and ended <= restarted + _CLEANING_UP


def in_doubt_seconds(state: Mapping[str, Any], now: datetime) -> float:
    """Return how much longer a container with this `State`, which has ended, may turn out to have ended with Docker.

    Docker sends SIGTERM to all containers and waits for the slowest before it exits itself.
    """
    longest, ended = _DOUBT_SECONDS.get(state.get("ExitCode"), 0.0), _time(state.get("FinishedAt"))
    passed = (now - ended).total_seconds() if ended is not None else longest
    return longest - passed if 0 <= passed < longest else 0.0


def _time(text: Any) -> datetime | None:
    try:
        # Docker writes nanoseconds, which Python reads up to the microsecond.
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def remove(container: Container) -> None:
    """Remove a container and its volumes; one that is gone, or being removed, is fine. DeliveryFailed."""
    try:
        container.remove(force=True, v=True)
    except docker.errors.NotFound:
        return
    except docker.errors.APIError as error:
        text = str(error).lower()
        if "already in progress" not in text and "no such container" not in text:
            raise DeliveryFailed(f"Docker could not remove the container {container.name}: {error}") from error
    except (requests.RequestException, OSError) as error:
        raise DeliveryFailed(f"Docker could not remove the container {container.name}: {error}") from error


def unreachable(error: Exception, docker_host: str | None) -> DeliveryFailed:
    """Return the failure of a call that Docker did not answer."""
    return DeliveryFailed(docker_engine.describe_error(error, docker_host), code="runtime_unavailable")


def failed(error: docker.errors.APIError, versions: DriverVersions | None = None) -> DeliveryFailed:
    """Return why a container was not started, with the next step. `versions` is None for a container without GPUs."""
    text = str(error.explanation or error)
    low = text.lower()
    if "port is already allocated" in low or "address already in use" in low:
        return DeliveryFailed(f"The port is in use: {text}", code="port_unavailable", port_taken=True)
    if versions is not None and (found := docker_gpus.explain(text, versions)) is not None:
        return DeliveryFailed(found.text, code=found.code)
    if "no such image" in low:
        return DeliveryFailed(f"The image is no longer on this node: {text[:300]}", code="pull_failed")
    return DeliveryFailed(f"Docker could not start the container: {text[:400]}")


def drops_devices(container: Container, requests: Any) -> bool:
    """Return whether the container was made without the devices that were requested, as some Docker sockets do."""
    return bool(requests) and not (container.attrs.get("HostConfig") or {}).get("DeviceRequests")
