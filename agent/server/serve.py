"""The life of ``mirbad-agent serve``: take the state folder, adopt engines, listen; engines outlive it."""

import asyncio
import errno
import gc
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from agent import __version__
from agent.capability import read_capabilities
from agent.clock import boot_id
from agent.config import AgentConfig
from agent.deliveries.pulls import Pulls
from agent.downloads import Downloads
from agent.errors import AgentError
from agent.fence import Fence
from agent.identity import BrokenIdentity, Identity, IdentityStore, in_groups
from agent.operations import Journal
from agent.running import Instances
from agent.server.app import Parts, make_app
from agent.server.events import Hub
from agent.server.notify import Notifier
from agent.server.relay import Relay
from agent.server.rotation import Rotation
from agent.server.seq import Sequence
from agent.server.status import Probes, Reporter
from agent.server.tls import Door
from agent.state import exclusive
from agent.telemetry.gpu import gpu_statuses
from agent.telemetry.host import host_status
from agent.telemetry.meter import Meter
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceView

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 3.0
STATUS_SECONDS = 5.0
CAPABILITIES_EVERY_SECONDS = 60.0
IDENTITY_EVERY_SECONDS = 2.0
KEEPALIVE_SECONDS = 600.0
"""How long an idle connection stays: the gateway keeps some open so that a request does not wait for a handshake."""

LOCK_FILE = "serve.lock"

MakeInstances = Callable[[AgentConfig, Identity, Callable[[InstanceView], None]], Instances]


def make_instances(config: AgentConfig, identity: Identity, changed: Callable[[InstanceView], None]) -> Instances:
    """The engines of this machine, labelled with its fleet and node."""
    return Instances(config, identity.fleet, changed, node=identity.node_id)


class CannotServe(Exception):
    """The agent cannot serve; the text is one line that says what to change."""


def machine_probes(config: AgentConfig) -> Probes:
    """The probes of this machine."""
    meter = Meter(config.state_dir)
    return Probes(
        host=lambda: host_status(_existing(config.models_root), meter.best),
        gpus=lambda: gpu_statuses(config.nvidia_smi),
        capabilities=lambda: read_capabilities(config),
        background=meter.run,
    )


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


class Server:
    """One running agent. `start`, then `stop`; `port` is the one it listens on."""

    def __init__(
        self,
        config: AgentConfig,
        store: IdentityStore,
        probes: Probes,
        make_engines: MakeInstances = make_instances,
    ) -> None:
        identity = store.load()
        self._config = config
        self._store = store
        self._probes = probes
        self.door = Door(identity)
        self._rotation = Rotation(store, config.state_dir, self.door, self._hang_up)
        self._fence = Fence(config.state_dir, identity.node_uid)
        self._journal = Journal(config.state_dir)
        self.hub = Hub(Sequence(config.state_dir, boot_id()))
        self._downloads = Downloads(config, self._folders_changed)
        self._pulls = Pulls(config)
        self._look_again = asyncio.Event()
        self._instances = make_engines(config, identity, self.hub.changed)
        self.reporter = Reporter(probes, self._instances, self._fence, self.hub.sequence)
        self._open_requests: Counter[str] = Counter()
        self._runner: web.AppRunner | None = None
        self._relay: Relay | None = None
        self._listening: asyncio.Server | None = None
        self._loops: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """The port it listens on. RuntimeError before `start`."""
        if self._listening is None:
            raise RuntimeError("the agent does not listen yet")
        return int(self._listening.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """How many connections are open."""
        others = len(self._runner.server.connections) if self._runner and self._runner.server else 0
        return others + (len(self._relay.service.own) if self._relay is not None else 0)

    async def start(self) -> None:
        """Adopt what still runs, then listen. CannotServe when the port cannot be had."""
        self._journal.open()
        self.hub.bind(self.reporter.status)
        self._warn_of_expiry()
        await self._instances.recover()
        await self._downloads.recover()
        parts = Parts(
            self._config,
            self.door,
            self._fence,
            self._journal,
            self._instances,
            self.hub,
            self.reporter,
            self._rotation,
            self._downloads,
            self._pulls,
            self._folders_changed,
            self._open_requests,
        )
        self._runner = web.AppRunner(
            make_app(parts),
            access_log=None,
            handle_signals=False,
            keepalive_timeout=KEEPALIVE_SECONDS,
            shutdown_timeout=self._config.drain_seconds,
        )
        await self._runner.setup()
        self._listening = await self._listen(self._runner)
        self._loops = [
            self._loop(self._tell_status(), "status"),
            self._loop(self._watch_capabilities(), "capabilities"),
            self._loop(self._watch_identity(), "identity"),
        ]
        if self._probes.background is not None:
            self._loops.append(self._loop(self._guarded(self._probes.background), "measuring"))

    async def stop(self) -> None:
        """Take no more calls, finish those at work, and leave the engines alone."""
        await _end(self._loops)
        if self._listening is not None:
            self._listening.close()
        self.hub.close()
        if self._relay is not None:
            await self._relay.drain(self._config.drain_seconds)
        if self._runner is not None:
            await self._runner.cleanup()
        await self._journal.close()
        await self._downloads.close()
        await self._pulls.close()
        await self._instances.close()

    def _warn_of_expiry(self) -> None:
        if self.door.identity.has_expired:
            log.warning(
                "the certificate expired on %s; the master lets this node in again once it is re-paired (join --rekey)",
                self.door.identity.not_after,
            )

    async def _listen(self, runner: web.AppRunner) -> asyncio.Server:
        if runner.server is None:
            raise RuntimeError("the runner was not set up")
        config = self._config
        self._relay = Relay(
            self._instances,
            self._turn_away,
            runner.server,
            keep_alive_seconds=KEEPALIVE_SECONDS,
            flight=self._open_requests,
        )
        try:
            return await asyncio.get_running_loop().create_server(
                self._relay.protocol,
                config.bind,
                config.port,
                ssl=self.door.context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                reuse_address=True,
                backlog=512,
            )
        except OSError as error:
            await runner.cleanup()
            raise CannotServe(_why_no_port(config, error)) from error

    def _turn_away(self, transport: asyncio.BaseTransport) -> AgentError | None:
        """Why a connection may not reach an engine; None when it may."""
        if not self.door.knows(transport):
            return AgentError(AgentCode.NOT_APPROVED, "this connection's key is not the master's any more")
        if self._fence.held is None:
            return AgentError(AgentCode.NOT_APPROVED, "no master has claimed this node yet; approve it first")
        return None

    def _hang_up(self, is_unwanted: Callable[[asyncio.BaseTransport], bool]) -> None:
        """End connections that are unwanted; model traffic once it is answered."""
        others = self._runner.server.connections if self._runner and self._runner.server else []
        for connection in others:
            if connection.transport is not None and is_unwanted(connection.transport):
                connection.transport.abort()
        for relayed in list(self._relay.service.own) if self._relay is not None else []:
            if is_unwanted(relayed.transport):
                relayed.shutdown()

    def _loop(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=f"agent {name}")

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception:  # the loop's edge: a machine that cannot be measured is served all the same
            log.exception("measuring in the background ended")

    async def _tell_status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            if self.hub.listeners:
                try:
                    await self.hub.refresh()
                except Exception:  # the loop's edge: one status that cannot be built must not end them all
                    log.exception("the status could not be told")

    async def _watch_capabilities(self) -> None:
        while True:
            try:
                await self.reporter.capabilities()
            except AgentError as error:
                log.warning("%s", error.detail)
            except Exception:  # the loop's edge
                log.exception("the capabilities could not be read")
            with suppress(TimeoutError):
                async with asyncio.timeout(CAPABILITIES_EVERY_SECONDS):
                    await self._look_again.wait()
            self._look_again.clear()

    def _folders_changed(self) -> None:
        """A folder came or went: the capabilities are read again at once, and the next status says so."""
        self._look_again.set()

    async def _watch_identity(self) -> None:
        while True:
            await asyncio.sleep(IDENTITY_EVERY_SECONDS)
            try:
                self.take_identity()
            except (BrokenIdentity, OSError) as error:
                log.error("the new identity is not used, the old one stays: %s", error)

    def take_identity(self) -> bool:
        """Use the identity that a rekey put in place, if there is another. BrokenIdentity: the old one stays."""
        name = self._store.current_name()
        if name is None or name == self._rotation.loaded or self._rotation.busy:
            return False
        self._rotation.loaded = name  # also when it cannot be used: said once, not every two seconds
        fresh = self._store.load()
        if fresh.node_uid != self.door.identity.node_uid:
            raise BrokenIdentity("it is of another node; restart the agent to use it")
        self.door.swap(fresh)
        self._rotation.forget()
        # Open connections were made with the old key and may be of a master that is pinned no more.
        if self._runner is not None and self._runner.server is not None:
            for connection in self._runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
        if self._relay is not None:
            self._relay.cut()
        log.info("the identity was replaced; key fingerprint (SPKI SHA-256): %s", in_groups(fresh.spki))
        return True


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel `tasks` until they are over: what they wait in may lose a cancellation that comes with its own end."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1)


def _why_no_port(config: AgentConfig, error: OSError) -> str:
    where = f"{config.bind}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return f"port {config.port} is in use; stop the process that holds it or set another port in agent.json"
    if error.errno == errno.EACCES:
        return f"this user may not listen on {where}; set a port above 1023 in agent.json"
    return f"cannot listen on {where}: {error.strerror}; check bind and port in agent.json"


async def serve(config: AgentConfig, stop: asyncio.Event, probes: Probes | None = None) -> None:
    """Serve until `stop`. CannotServe, MissingIdentity, BrokenIdentity, BrokenFence or Locked before it listens."""
    store = IdentityStore(config.state_dir)
    async with AsyncExitStack() as stack:
        stack.enter_context(exclusive(config.state_dir / LOCK_FILE))
        server = Server(config, store, probes or machine_probes(config))
        stack.push_async_callback(server.stop)
        await server.start()
        gc.collect()
        gc.freeze()  # what stands now stays: no collection need look at it again
        node_id = server.door.identity.node_id
        log.info("agent %s of node %s listens on %s:%d", __version__, node_id, config.bind, server.port)
        notifier = Notifier()
        notifier.say("READY=1", f"STATUS=node {node_id}, port {server.port}")
        watchdog = asyncio.create_task(notifier.keep_watchdog())
        await stop.wait()
        watchdog.cancel()
        notifier.say("STOPPING=1")
        log.info("the agent ends; engines go on")
