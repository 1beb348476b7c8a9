"""The Docker Engine of this machine: connection and abilities."""

import asyncio
import os
import socket
from dataclasses import dataclass

import docker
import docker.errors
import requests

from agent.deliveries import docker_network

TIMEOUT_SECONDS = 30
_STATE_SECONDS = 4
_DEFAULT_HOST = "unix:///var/run/docker.sock"

NO_TOOLKIT = (
    "Docker on this node cannot give GPUs to containers. Install the NVIDIA Container Toolkit and restart Docker."
)


@dataclass(frozen=True)
class DockerState:
    """State of Docker on this machine. `gives_gpus` None is unknown; containers have the
    internet unless it `isolates`.
    """

    problem: str | None
    version: str | None = None
    gives_gpus: bool | None = None
    isolates: bool = True


def connect(docker_host: str | None, timeout_seconds: int = TIMEOUT_SECONDS) -> docker.DockerClient:
    """Return a client of the newest common API version. DockerException or OSError if unreachable; blocking."""
    address = docker_host or os.environ.get("DOCKER_HOST") or _DEFAULT_HOST
    if address.startswith("unix://"):
        # The library leaks its socket when nobody answers, and this is called often.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(timeout_seconds)
            probe.connect(address.removeprefix("unix://"))
    if docker_host:
        return docker.DockerClient(base_url=docker_host, version="auto", timeout=timeout_seconds)
    return docker.from_env(version="auto", timeout=timeout_seconds)


def speaks_another_version(error: docker.errors.APIError) -> bool:
    """Return whether Docker refuses the agreed API version: it was upgraded or downgraded since."""
    text = str(error.explanation or error).lower()
    return "client version" in text and ("too old" in text or "too new" in text)


def describe_error(error: Exception, docker_host: str | None) -> str:
    """Return why Docker is unreachable, with the next step."""
    text = str(error)
    where = docker_host or "its default socket"
    if "Permission denied" in text:
        return f"The agent has no permission to use Docker ({where}). Add its user to the docker group and restart it."
    if "No such file" in text or "Connection refused" in text or "FileNotFoundError" in text:
        return f"Docker is not running on this node (no answer at {where}). Install or start it to run containers."
    low = text.lower()
    if "too old" in low or "too new" in low or "api versions below" in low:
        return f"Docker on this node and the agent have no common API version. Upgrade the older one. {text[:300]}"
    return f"Docker cannot be used on this node: {text[:300]}"


def started_at(client: docker.DockerClient) -> str | None:
    """Return when Docker was started, as it writes times; None when unknown.

    Docker reports no such time, but makes its default network anew at each start. Blocking; DockerException or OSError.
    """
    networks = client.networks.list(names=["bridge"], filters={"driver": "bridge"})
    found = [network.attrs.get("Created") for network in networks if network.name == "bridge"]
    return found[0] if found and isinstance(found[0], str) else None


async def read_state(docker_host: str | None) -> DockerState:
    """Return whether containers can be run here, now."""
    return await asyncio.to_thread(_read_state, docker_host)


def _read_state(docker_host: str | None) -> DockerState:
    try:
        client = connect(docker_host, _STATE_SECONDS)
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        return DockerState(problem=describe_error(error, docker_host))
    try:
        info = client.info()
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        return DockerState(problem=describe_error(error, docker_host))
    finally:
        client.close()
    runtimes = info.get("Runtimes") or {}
    devices = info.get("CDISpecDirs")
    gives: bool | None = True if any("nvidia" in name for name in runtimes) else (None if devices else False)
    return DockerState(
        problem=None,
        version=str(info.get("ServerVersion") or "") or None,
        gives_gpus=gives,
        isolates=docker_network.can_isolate(info),
    )
