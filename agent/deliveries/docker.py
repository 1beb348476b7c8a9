"""Engines as containers of this machine's Docker Engine. Every act is on a container whose labels are our own."""

import asyncio
import functools
import math
import os
import threading
from collections.abc import Callable
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
from agent.deliveries import docker_container, docker_engine, docker_pull, images
from agent.deliveries.base import (
    INSTANCE_VARIABLE,
    LAUNCH_VARIABLE,
    OOM_SCORE,
    DeliveryFailed,
    Found,
    Handle,
    ImageOrder,
    Order,
    Progress,
    Seen,
)
from agent.deliveries.docker_container import LAUNCH_LABEL
from agent.wire.instances import PullProgress

T = TypeVar("T")

_CALLS = 8
_LONG_CALLS = 512
_SHARED_MEMORY_BYTES = 8 * 1024**3
"""A cap of /dev/shm, which engines with several GPUs use; nothing is taken before it is used."""

_LOG_MAX = "64m"
_FOLLOW_AGAIN_SECONDS = 2.0
_RUNNING = frozenset({"running", "paused", "restarting"})

FLEET_LABEL, NODE_LABEL = "mirbad.fleet", "mirbad.node"
RECORD_LABEL = "mirbad.record"


class DockerDelivery:
    """Pulls, starts, finds and ends engine containers. `fleet` and `node` mark what is ours."""

    reads_log_again = True

    def __init__(self, docker_host: str | None, fleet: str, node: str) -> None:
        self._host = docker_host
        self._fleet = fleet
        self._node = node
        self._client: docker.DockerClient | None = None
        self._connecting = threading.Lock()
        # following logs and pulling keep a thread each, and must not take those of short calls
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
        """`call` with the client; once more with a new one when the engine now speaks another version of its API."""
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
        """Why the engine cannot be used now."""
        return (await docker_engine.look(self._host)).problem

    # -- pull and start ------------------------------------------------------------------------------------------------

    async def prepare(self, order: Order, progress: Progress) -> None:
        """Pull the image unless it is here. A cancelled pull ends at its next event."""
        image = _image_order(order)
        loop, stop = asyncio.get_running_loop(), docker_pull.Stop()

        def tell(value: PullProgress) -> None:
            if not stop.is_set():
                loop.call_soon_threadsafe(progress, value)

        wanted = images.parse(image.reference, image.digest)
        try:
            await self._do_long(docker_pull.bring, self._host, wanted, tell, stop)
        finally:
            stop.set()

    async def start(self, order: Order) -> Handle:
        """Make the container and start it; one that does not start is removed."""
        return await self._do(self._start, order)

    def _start(self, order: Order) -> Handle:
        settings = self._settings(order, _image_order(order))
        try:
            container = self._ask(lambda client: docker_container.create(client, settings))
        except docker.errors.APIError as error:
            raise docker_container.failed(error) from error
        except (requests.RequestException, OSError) as error:
            raise docker_container.unreachable(error, self._host) from error
        try:
            container.start()
            container.reload()
        except docker.errors.APIError as error:
            docker_container.remove(container)
            raise docker_container.failed(error) from error
        except (requests.RequestException, OSError) as error:
            raise docker_container.unreachable(error, self._host) from error
        return _handle(order.launch_id, container)

    def _settings(self, order: Order, image: ImageOrder) -> dict[str, Any]:
        """What `containers.create` is given."""
        name = images.parse(image.reference, image.digest)
        settings: dict[str, Any] = {
            "image": name.reference,
            "command": list(order.argv),
            "name": f"mirbad-{order.instance_id[:80]}-{order.launch_id[:8]}",
            "environment": {
                **order.env,
                LAUNCH_VARIABLE: order.launch_id,
                INSTANCE_VARIABLE: order.instance_id,
            },
            "labels": {**image.labels, FLEET_LABEL: self._fleet, NODE_LABEL: self._node, LAUNCH_LABEL: order.launch_id},
            "mounts": [Mount(str(path), str(path), type="bind", read_only=True) for path in image.mounts],
            "ports": {f"{image.container_port}/tcp": ("127.0.0.1", image.host_port)},
            "init": True,
            "oom_score_adj": OOM_SCORE,
            "shm_size": _SHARED_MEMORY_BYTES,
            "security_opt": ["no-new-privileges:true"],
            "log_config": LogConfig(type=LogConfig.types.JSON, config={"max-size": _LOG_MAX, "max-file": "2"}),
            "detach": True,
        }
        if image.shares_network:
            docker_container.share_network(settings)
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
        """By the launch's label; an ended container still tells how. One that was never started is removed."""
        return await self._do(self._find, launch_id)

    def _find(self, launch_id: str) -> Handle | None:
        for container in self._ours(f"{LAUNCH_LABEL}={launch_id}"):
            if container.status == "created":
                docker_container.remove(container)
            else:
                return _handle(launch_id, container)
        return None

    async def others(self, known: frozenset[str]) -> tuple[Found, ...]:
        """Running containers of this node whose launch is not among `known`: their records were lost."""
        return await self._do(self._others, known)

    def _others(self, known: frozenset[str]) -> tuple[Found, ...]:
        found = []
        for container in self._ours(f"{NODE_LABEL}={self._node}"):
            launch_id, record = container.labels.get(LAUNCH_LABEL, ""), container.labels.get(RECORD_LABEL)
            if launch_id in known or not launch_id or record is None or container.status not in _RUNNING:
                continue
            env = dict(line.partition("=")[::2] for line in container.attrs["Config"].get("Env") or [])
            found.append(Found(handle=_handle(launch_id, container), record=record, env=env))
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
        """The container if it is there and ours. DeliveryFailed when the engine does not answer."""
        try:
            container = self._ask(lambda client: client.containers.get(handle.container_id or ""))
        except docker.errors.NotFound:
            return None
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise docker_container.unreachable(error, self._host) from error
        ours = container.labels.get(FLEET_LABEL) == self._fleet
        return container if ours and container.labels.get(LAUNCH_LABEL) == handle.launch_id else None

    # -- watching ------------------------------------------------------------------------------------------------------

    async def seen(self, handle: Handle) -> Seen:
        """While the engine does not answer, what ran is taken to run: it may well."""
        try:
            return await self._do(self._seen, handle)
        except DeliveryFailed:
            return Seen(running=True)

    def _seen(self, handle: Handle) -> Seen:
        container = self._get(handle)
        if container is None:
            return Seen(running=False)
        state = container.attrs["State"]
        if state.get("Status") in _RUNNING:
            return Seen(running=True)
        return Seen(running=False, exit_code=state.get("ExitCode"), out_of_memory=bool(state.get("OOMKilled")))

    async def owns_port(self, handle: Handle, port: int) -> bool | None:
        """Whether the engine published the port for this container."""
        try:
            container = await self._do(self._get, handle)
        except DeliveryFailed:
            return None
        if container is None:
            return False
        bindings = (container.attrs["NetworkSettings"].get("Ports") or {}).values()
        return any(item.get("HostPort") == str(port) for binding in bindings for item in binding or [])

    async def memory_bytes(self, handle: Handle) -> int | None:
        """Its cgroup's memory without pages that can be dropped."""
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
        """Write its output to `log` from its first line on, for as long as it runs."""
        while True:
            opened: list[Any] = []
            try:
                await self._do_long(self._copy, handle, log, opened)
            except asyncio.CancelledError:
                for stream in opened:
                    stream.close()
                raise
            if not (await self.seen(handle)).running:
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
            # AttributeError: what urllib3 raises when the stream is closed under its reader
            return

    # -- ending --------------------------------------------------------------------------------------------------------

    async def stop(self, handle: Handle, grace_seconds: float) -> Seen:
        """SIGTERM and, after the grace, SIGKILL, both by the engine."""
        return await self._do_long(self._stop, handle, grace_seconds)

    def _stop(self, handle: Handle, grace_seconds: float) -> Seen:
        container = self._get(handle)
        if container is None:
            return Seen(running=False)
        try:
            container.stop(timeout=math.ceil(grace_seconds))
            container.reload()
        except docker.errors.NotFound:
            return Seen(running=False)
        except docker.errors.APIError as error:
            if self._get(handle) is None:
                return Seen(running=False)
            raise DeliveryFailed(f"Docker could not stop the container: {error.explanation}.") from error
        except (requests.RequestException, OSError) as error:
            raise docker_container.unreachable(error, self._host) from error
        return self._seen(handle)

    async def clean(self, handle: Handle) -> None:
        """Remove the container."""
        await self._do(self._clean, handle)

    def _clean(self, handle: Handle) -> None:
        container = self._get(handle)
        if container is not None:
            docker_container.remove(container)

    async def close(self) -> None:
        """Let go of the engine; containers go on."""
        for pool in (self._threads, self._long):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()


def _image_order(order: Order) -> ImageOrder:
    if order.image is None:
        raise DeliveryFailed("A container needs an image.")
    return order.image


def _handle(launch_id: str, container: Container) -> Handle:
    try:
        image = container.image
    except docker.errors.NotFound:
        image = None  # removed under its container, which runs on
    digests = (image.attrs.get("RepoDigests") or []) if image is not None else []
    digest = next(iter(digests), "").partition("@")[2] or None
    return Handle(launch_id=launch_id, container_id=container.id, boot_id=clock.boot_id(), image_digest=digest)
