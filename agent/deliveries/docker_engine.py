"""The Docker Engine of this machine: reaching it, and what it can do."""

import asyncio
import os
import socket
from dataclasses import dataclass

import docker
import docker.errors
import requests

TIMEOUT_SECONDS = 30
_LOOK_SECONDS = 4
_USUAL = "unix:///var/run/docker.sock"

NO_TOOLKIT = (
    "Docker on this node cannot give GPUs to containers: install the NVIDIA Container Toolkit and restart Docker."
)


@dataclass(frozen=True)
class EngineState:
    """Whether containers can be run. `gives_gpus` None is not known."""

    problem: str | None
    version: str | None = None
    gives_gpus: bool | None = None


def connect(docker_host: str | None, timeout_seconds: int = TIMEOUT_SECONDS) -> docker.DockerClient:
    """A client of the newest API version that both sides know. DockerException or OSError if not reached; blocking."""
    address = docker_host or os.environ.get("DOCKER_HOST") or _USUAL
    if address.startswith("unix://"):
        # the library leaves its socket open when nobody answers, and it asks often
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(timeout_seconds)
            probe.connect(address.removeprefix("unix://"))
    if docker_host:
        return docker.DockerClient(base_url=docker_host, version="auto", timeout=timeout_seconds)
    return docker.from_env(version="auto", timeout=timeout_seconds)


def speaks_another_version(error: docker.errors.APIError) -> bool:
    """Whether the engine refuses the version that was agreed on: it was upgraded, or put back, since then."""
    text = str(error.explanation or error).lower()
    return "client version" in text and ("too old" in text or "too new" in text)


def say(error: Exception, docker_host: str | None) -> str:
    """Why the engine is not reached, with what to do."""
    text = str(error)
    where = docker_host or "its usual socket"
    if "Permission denied" in text:
        return f"The agent may not talk to Docker ({where}): add its user to the group docker and restart the agent."
    if "No such file" in text or "Connection refused" in text or "FileNotFoundError" in text:
        return f"Docker does not run on this node (nothing answers at {where}); install or start it to run containers."
    low = text.lower()
    if "too old" in low or "too new" in low or "api versions below" in low:
        return f"Docker on this node and the agent have no API version in common; upgrade the older one. {text[:300]}"
    return f"Docker cannot be used on this node: {text[:300]}"


async def look(docker_host: str | None) -> EngineState:
    """Whether containers can be run here, now."""
    return await asyncio.to_thread(_look, docker_host)


def _look(docker_host: str | None) -> EngineState:
    try:
        client = connect(docker_host, _LOOK_SECONDS)
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        return EngineState(problem=say(error, docker_host))
    try:
        info = client.info()
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        return EngineState(problem=say(error, docker_host))
    finally:
        client.close()
    runtimes = info.get("Runtimes") or {}
    devices = info.get("CDISpecDirs")
    gives: bool | None = True if any("nvidia" in name for name in runtimes) else (None if devices else False)
    return EngineState(problem=None, version=str(info.get("ServerVersion") or "") or None, gives_gpus=gives)
