"""Engines as containers of this machine's Docker Engine. Only containers with our labels are touched."""

import asyncio
import functools
import math
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import docker
import docker.errors
import requests
import urllib3.exceptions
from docker.models.containers import Container
from docker.types import DeviceRequest, LogConfig, Mount

from agent import clock
from agent.deliveries import docker_container, docker_engine, docker_network, docker_pull, images
from agent.deliveries.base import (
    INSTANCE_VARIABLE,
    LAUNCH_VARIABLE,
    OOM_SCORE,
    DeliveryFailed,
    EngineObservation,
    FoundEngine,
    Handle,
    ImageSpec,
    Progress,
    RunSpec,
)
from agent.deliveries.docker_container import LAUNCH_LABEL
from agent.wire.instances import PullProgress

T = TypeVar("T")

_CALLS = 8
_LONG_CALLS = 512
_SHARED_MEMORY_BYTES = 8 * 1024**3
"""Upper limit of /dev/shm, which engines with several GPUs use; memory is taken only as it is used."""

_LOG_MAX = "8m"
"""Of each of the two files that Docker keeps itself: about the 4 MiB of the agent's, which Docker writes as JSON."""

_FOLLOW_AGAIN_SECONDS = 2.0
_RUNNING = frozenset({"running", "paused", "restarting"})

FLEET_LABEL, NODE_LABEL = "mirbad.fleet", "mirbad.node"
RECORD_LABEL, MODEL_LABEL = "mirbad.record", "mirbad.model"


class DockerDelivery:
    """Pulls images; starts, finds and stops engine containers. `fleet` and `node` label our own."""

    reads_log_again = True

    def __init__(self, docker_host: str | None, fleet: str, node: str) -> None:
        self._host = docker_host
        self._fleet = fleet
        self._node = node
        self._client: docker.DockerClient | None = None
        self._connecting = threading.Lock()
        # Following logs and pulling occupy a thread each, and must not starve short calls.
        self._threads = ThreadPoolExecutor(max_workers=_CALLS, thread_name_prefix="docker")
        self._long = ThreadPoolExecutor(max_workers=_LONG_CALLS, thread_name_prefix="docker-long")

    async def _do(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, functools.partial(call, *arguments))

    async def _do_long(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._long, functools.partial(call, *arguments))

    def _engine(self) -> docker.DockerClient:
        with self._connecting:
            if self._client is None:
                try:
                    self._client = docker_engine.connect(self._host)
                except (docker.errors.DockerException, requests.RequestException, OSError) as error:
                    raise docker_container.unreachable(error, self._host) from error
            return self._client

    def _ask(self, call: Callable[[docker.DockerClient], T]) -> T:
        """Run `call` with the client, and again with a new one when the engine's API version has changed."""
        client = self._engine()
        try:
            return call(client)
        except docker.errors.APIError as error:
            if not docker_engine.speaks_another_version(error):
                raise
        with self._connecting:
            if self._client is client:
                self._client = None
        return call(self._engine())

    async def problem(self) -> str | None:
        """Return why Docker cannot be used now; None when it can."""
        return (await docker_engine.read_state(self._host)).problem

    # -- pull and start ------------------------------------------------------------------------------------------------

    async def prepare(self, run_spec: RunSpec, progress: Progress) -> None:
        """Pull the image unless it exists. A cancelled pull ends at its next event."""
        image = _image_spec(run_spec)
        loop, stop = asyncio.get_running_loop(), docker_pull.PullStop()

        def report(value: PullProgress) -> None:
            if not stop.is_set():
                loop.call_soon_threadsafe(progress, value)

        reference = images.parse(image.reference, image.digest)
        try:
            await self._do_long(docker_pull.ensure_image, self._host, reference, report, stop)
        finally:
            stop.set()

    async def start(self, run_spec: RunSpec) -> Handle:
        """Create and start the container; one that does not start is removed."""
        return await self._do(self._start, run_spec)

    def _start(self, run_spec: RunSpec) -> Handle:
        image = _image_spec(run_spec)
        settings = self._settings(run_spec, image)

        def create(client: docker.DockerClient) -> Container:
            if not (image.shares_network or image.internet) and docker_network.can_isolate(client.info()):
                docker_network.isolate(client, settings, image)
            return docker_container.create(client, settings)

        try:
            container = self._ask(create)
        except docker.errors.APIError as error:
            raise docker_container.failed(error, image.versions) from error
        except (requests.RequestException, OSError) as error:
            raise docker_container.unreachable(error, self._host) from error
        try:
            container.start()
            container.reload()
        except docker.errors.APIError as error:
            docker_container.remove(container)
            raise docker_container.failed(error, image.versions) from error
        except (requests.RequestException, OSError) as error:
            raise docker_container.unreachable(error, self._host) from error
        without_gpus = docker_container.drops_devices(container, settings.get("device_requests"))
        return _handle(run_spec.launch_id, container).model_copy(update={"without_gpus": without_gpus})

    def _settings(self, run_spec: RunSpec, image: ImageSpec) -> dict[str, Any]:
        """Return the arguments of `containers.create`."""
        name = images.parse(image.reference, image.digest)
        settings: dict[str, Any] = {
            "image": name.reference,
            "command": list(run_spec.argv),
            "name": f"mirbad-{run_spec.instance_id[:80]}-{run_spec.launch_id[:8]}",
            "environment": {
                **run_spec.env,
                LAUNCH_VARIABLE: run_spec.launch_id,
                INSTANCE_VARIABLE: run_spec.instance_id,
            },
            "labels": {
                **image.labels,
                FLEET_LABEL: self._fleet,
                NODE_LABEL: self._node,
                LAUNCH_LABEL: run_spec.launch_id,
            },
            "mounts": [Mount(str(path), str(path), type="bind", read_only=True) for path in image.mounts],
            "ports": {f"{image.container_port}/tcp": ("127.0.0.1", image.host_port)},
            "init": True,
            "oom_score_adj": OOM_SCORE,
            "shm_size": _SHARED_MEMORY_BYTES,
            "log_config": LogConfig(type=LogConfig.types.JSON, config={"max-size": _LOG_MAX, "max-file": "2"}),
            "detach": True,
        }
        if image.shares_network:
            docker_container.share_network(settings)
        docker_network.harden(settings, image)
        if image.entrypoint is not None:
            settings["entrypoint"] = list(image.entrypoint)
        if image.gpus:
            settings["device_requests"] = [
                DeviceRequest(driver="nvidia", device_ids=list(image.gpus), capabilities=[["gpu"]])
            ]
        elif image.gpus is not None:
            settings["device_requests"] = [DeviceRequest(driver="nvidia", count=-1, capabilities=[["gpu"]])]
        return settings

    # -- finding -------------------------------------------------------------------------------------------------------

    async def recover(self, launch_id: str, handle: Handle | None) -> Handle | None:
        """Find the container by the launch's label, ended ones included. One that never started is removed."""
        return await self._do(self._find, launch_id)

    def _find(self, launch_id: str) -> Handle | None:
        for container in self._ours(f"{LAUNCH_LABEL}={launch_id}"):
            if container.status == "created":
                docker_container.remove(container)
            else:
                return _handle(launch_id, container)
        return None

    async def find_unrecorded(self, known: frozenset[str]) -> tuple[FoundEngine, ...]:
        """Find running containers of this node whose launch is not in `known`: their records were lost."""
        return await self._do(self._find_unrecorded, known)

    def _find_unrecorded(self, known: frozenset[str]) -> tuple[FoundEngine, ...]:
        found = []
        for container in self._ours(f"{NODE_LABEL}={self._node}"):
            labels = container.labels
            launch_id, record = labels.get(LAUNCH_LABEL, ""), labels.get(RECORD_LABEL, "")
            if launch_id in known or not launch_id or container.status not in _RUNNING:
                continue
            env = dict(line.partition("=")[::2] for line in container.attrs["Config"].get("Env") or [])
            found.append(FoundEngine(_handle(launch_id, container), record, env, labels.get(MODEL_LABEL, "")))
        return tuple(found)

    def _ours(self, label: str) -> list[Container]:
        filters: dict[str, str | list[str] | bool] = {"label": [f"{FLEET_LABEL}={self._fleet}", label]}
        try:
            return self._ask(
                lambda client: list(client.containers.list(all=True, filters=filters, ignore_removed=True))
            )
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise docker_container.unreachable(error, self._host) from error

    def _get(self, handle: Handle) -> Container | None:
        """Return the container if it exists and is ours. DeliveryFailed when Docker does not answer."""
        try:
            container = self._ask(lambda client: client.containers.get(handle.container_id or ""))
        except docker.errors.NotFound:
            return None
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise docker_container.unreachable(error, self._host) from error
        ours = container.labels.get(FLEET_LABEL) == self._fleet
        return container if ours and container.labels.get(LAUNCH_LABEL) == handle.launch_id else None

    # -- watching ------------------------------------------------------------------------------------------------------

    async def observe(self, handle: Handle) -> EngineObservation:
        """Return the state. While Docker does not answer, a running container counts as still running."""
        try:
            return await self._do(self._observe, handle)
        except DeliveryFailed:
            return EngineObservation(running=True)

    def _observe(self, handle: Handle) -> EngineObservation:
        container = self._get(handle)
        if container is None:
            return EngineObservation(running=False)
        state = container.attrs["State"]
        if state.get("Status") in _RUNNING:
            return EngineObservation(running=True)
        out_of_memory = bool(state.get("OOMKilled"))
        with_docker = not out_of_memory and self._ended_with_docker(state)
        in_doubt = 0.0 if out_of_memory or with_docker else docker_container.in_doubt_seconds(state, clock.now())
        return EngineObservation(
            running=False,
            exit_code=state.get("ExitCode"),
            out_of_memory=out_of_memory,
            with_docker=with_docker,
            in_doubt_seconds=in_doubt,
        )

    def _ended_with_docker(self, state: Mapping[str, Any]) -> bool:
        """Return whether Docker was restarted under the container. False when that is unknown."""
        try:
            started = self._ask(docker_engine.started_at)
        except (docker.errors.DockerException, requests.RequestException, OSError):
            return False
        return docker_container.ended_with_docker(state, started)

    async def owns_port(self, handle: Handle, port: int) -> bool | None:
        """Return whether Docker published the port for this container, or the container has an address of its own."""
        try:
            container = await self._do(self._get, handle)
        except DeliveryFailed:
            return None
        if container is None:
            return False
        if handle.host is not None:
            return docker_network.address(container) == (handle.host, handle.port)
        bindings = (container.attrs["NetworkSettings"].get("Ports") or {}).values()
        return any(item.get("HostPort") == str(port) for binding in bindings for item in binding or [])

    async def memory_bytes(self, handle: Handle) -> int | None:
        """Return the memory of its cgroup without reclaimable pages."""
        try:
            return await self._do(self._memory, handle)
        except DeliveryFailed:
            return None

    def _memory(self, handle: Handle) -> int | None:
        try:
            stats: Any = self._ask(
                lambda client: client.api.stats(handle.container_id or "", stream=False, one_shot=True)
            )
        except (docker.errors.DockerException, requests.RequestException, OSError):
            return None
        return docker_container.used_memory(stats)

    async def follow(self, handle: Handle, log: Path) -> None:
        """Write the container's output to `log` from its first line on, while it runs."""
        while True:
            opened: list[Any] = []
            try:
                await self._do_long(self._copy, handle, log, opened)
            except asyncio.CancelledError:
                for stream in opened:
                    stream.close()
                raise
            if not (await self.observe(handle)).running:
                return
            await asyncio.sleep(_FOLLOW_AGAIN_SECONDS)

    def _copy(self, handle: Handle, log: Path, opened: list[Any]) -> None:
        try:
            container = self._get(handle)
            if container is None:
                return
            stream = container.logs(stream=True, follow=True, stdout=True, stderr=True)
            opened.append(stream)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            with os.fdopen(os.open(log, flags, 0o600), "wb", buffering=0) as file:
                for part in stream:
                    file.write(part)
        except (
            DeliveryFailed,
            docker.errors.DockerException,
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
            AttributeError,
        ):
            # AttributeError: raised by urllib3 when the stream is closed under its reader
            return

    # -- ending --------------------------------------------------------------------------------------------------------

    async def stop(self, handle: Handle, grace_seconds: float) -> EngineObservation:
        """Send SIGTERM and, after the grace, SIGKILL, both by Docker."""
        return await self._do_long(self._stop, handle, grace_seconds)

    def _stop(self, handle: Handle, grace_seconds: float) -> EngineObservation:
        container = self._get(handle)
        if container is None:
            return EngineObservation(running=False)
        try:
            container.stop(timeout=math.ceil(grace_seconds))
            container.reload()
        except docker.errors.NotFound:
            return EngineObservation(running=False)
        except docker.errors.APIError as error:
            if self._get(handle) is None:
                return EngineObservation(running=False)
            raise DeliveryFailed(f"Docker could not stop the container: {error.explanation}.") from error
        except (requests.RequestException, OSError) as error:
            raise docker_container.unreachable(error, self._host) from error
        return self._observe(handle)

    async def clean(self, handle: Handle) -> None:
        """Remove the container."""
        await self._do(self._clean, handle)

    def _clean(self, handle: Handle) -> None:
        container = self._get(handle)
        if container is not None:
            docker_container.remove(container)

    async def close(self) -> None:
        """Close the client; containers keep running."""
        for pool in (self._threads, self._long):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()


def _image_spec(run_spec: RunSpec) -> ImageSpec:
    if run_spec.image is None:
        raise DeliveryFailed("A container needs an image.")
    return run_spec.image


def _handle(launch_id: str, container: Container) -> Handle:
    try:
        image = container.image
    except docker.errors.NotFound:
        image = None  # removed under its container, which keeps running
    digests = (image.attrs.get("RepoDigests") or []) if image is not None else []
    digest = next(iter(digests), "").partition("@")[2] or None
    host, port = docker_network.address(container) or (None, None)
    return Handle(
        launch_id=launch_id,
        container_id=container.id,
        boot_id=clock.boot_id(),
        image_digest=digest,
        host=host,
        port=port,
    )
