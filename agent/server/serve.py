"""The life cycle of ``mirbad-agent serve``: lock the state folder, adopt engines, listen. Engines outlive it."""

import asyncio
import errno
import gc
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from typing import Any

from aiohttp import web

from agent import __version__, models_root
from agent.capability import read_capabilities
from agent.clock import boot_id
from agent.common import heap, listening
from agent.config import AgentConfig
from agent.deliveries.pulls import ImagePulls
from agent.downloads import DownloadManager
from agent.errors import AgentError
from agent.fence import Fence
from agent.identity import AgentIdentityBroken, Identity, IdentityStore, in_groups
from agent.operations import OperationJournal
from agent.running import EngineInstances
from agent.running.run_spec import threads
from agent.server.app import ServerContext, make_app
from agent.server.events import EventBroadcaster
from agent.server.notify import Notifier
from agent.server.relay import Relay
from agent.server.rotation import Rotation
from agent.server.seq import Sequence
from agent.server.status import Probes, Reporter
from agent.server.tls import TlsTerminator
from agent.state import exclusive
from agent.telemetry.gpu import gpu_statuses
from agent.telemetry.host import host_status
from agent.telemetry.meter import BandwidthMeter
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceView
from agent.wire.status import GpuStatus
from agent.witness import Witness

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 3.0
STATUS_SECONDS = 5.0
CAPABILITIES_EVERY_SECONDS = 60.0
TROUBLE_SECONDS = 10.0
"""Time until the next look at GPUs that could not be read, or at a disk that is not mounted: both may come back."""

_ABSENT = frozenset({models_root.CHANGED, models_root.FOLDER_CHANGED})

IDENTITY_EVERY_SECONDS = 2.0
KEEPALIVE_SECONDS = 600.0
"""Time that an idle connection stays open: the gateway keeps some, so that a request needs no handshake."""

LOCK_FILE = "serve.lock"

MakeInstances = Callable[[AgentConfig, Identity, Callable[[InstanceView], None]], EngineInstances]


def make_instances(config: AgentConfig, identity: Identity, changed: Callable[[InstanceView], None]) -> EngineInstances:
    """Return the engines of this machine, labelled with its fleet and node."""
    return EngineInstances(config, identity.fleet, changed, node=identity.node_id)


class CannotServe(Exception):
    """The agent cannot serve; the text is one line that says how to fix it."""


def machine_probes(config: AgentConfig) -> Probes:
    """Return the probes of this machine."""
    meter = BandwidthMeter(config.state_dir)
    return Probes(
        host=lambda: host_status(config.models_root, meter.best, lambda: threads(config)),
        gpus=lambda: gpu_statuses(config.nvidia_smi),
        capabilities=lambda: read_capabilities(config),
        background=meter.run,
    )


class Server:
    """One running agent. Call `start`, then `stop`; `port` is its port."""

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
        self.tls = TlsTerminator(identity)
        self._rotation = Rotation(store, config.state_dir, self.tls, self._hang_up)
        self._fence = Fence(config.state_dir, identity.node_uid)
        self._witness = Witness(config.state_dir, identity.node_id, identity.node_uid)
        self._journal = OperationJournal(config.state_dir)
        self.events = EventBroadcaster(Sequence(config.state_dir, boot_id()))
        self._downloads = DownloadManager(config, self._folders_changed)
        self._pulls = ImagePulls(config)
        self._look_again = asyncio.Event()
        self._gpus: frozenset[tuple[str, str | None, bool]] | None = None
        self._instances = make_engines(config, identity, self.events.changed)
        self.reporter = Reporter(probes, self._instances, self._fence, self.events.sequence)
        self._open_requests: Counter[str] = Counter()
        self._runner: web.AppRunner | None = None
        self._relay: Relay | None = None
        self._listening: asyncio.Server | None = None
        self._loops: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """The port of the server. Raises RuntimeError before `start`."""
        if self._listening is None:
            raise RuntimeError("the agent is not listening yet")
        return int(self._listening.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """Count of open connections."""
        others = len(self._runner.server.connections) if self._runner and self._runner.server else 0
        return others + (len(self._relay.service.own) if self._relay is not None else 0)

    async def start(self) -> None:
        """Adopt running engines, then listen. Raises CannotServe when the port is not available."""
        self._journal.open()
        self.events.bind(self.reporter.status)
        self._warn_of_expiry()
        await self._instances.recover()
        await self._downloads.recover()
        parts = ServerContext(
            self._config,
            self.tls,
            self._fence,
            self._journal,
            self._instances,
            self.events,
            self.reporter,
            self._rotation,
            self._downloads,
            self._pulls,
            self._folders_changed,
            self._open_requests,
            self._witness,
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
            self._loop(_trim_heap(), "heap"),
        ]
        if self._probes.background is not None:
            self._loops.append(self._loop(self._guarded(self._probes.background), "measuring"))

    async def stop(self) -> None:
        """Accept no more requests, finish those in progress, and leave the engines running."""
        await _end(self._loops)
        if self._listening is not None:
            self._listening.close()
        self.events.close()
        if self._relay is not None:
            await self._relay.drain(self._config.drain_seconds)
        if self._runner is not None:
            await self._runner.cleanup()
        await self._journal.close()
        await self._downloads.close()
        await self._pulls.close()
        await self._instances.close()

    def _warn_of_expiry(self) -> None:
        if self.tls.identity.has_expired:
            log.warning(
                "the certificate expired on %s; re-pair the node (join --rekey)",
                self.tls.identity.not_after,
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
            requests=self._instances.requests,
        )
        try:
            return await asyncio.get_running_loop().create_server(
                self._relay.protocol,
                listening.host_of(config.bind),
                config.port,
                ssl=self.tls.context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                reuse_address=True,
                backlog=512,
            )
        except OSError as error:
            await runner.cleanup()
            raise CannotServe(_why_no_port(config, error)) from error

    def _turn_away(self, transport: asyncio.BaseTransport) -> AgentError | None:
        """Return why a connection may not reach an engine; None when it may."""
        if not self.tls.knows(transport):
            return AgentError(AgentCode.NOT_APPROVED, "This connection's key is no longer the master's.")
        if self._fence.held is None:
            return AgentError(AgentCode.NOT_APPROVED, "No master has claimed this node yet. Approve it first.")
        return None

    def _hang_up(self, is_unwanted: Callable[[asyncio.BaseTransport], bool]) -> None:
        """Close unwanted connections; model traffic after its response."""
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
        except Exception:  # the loop's edge: serve the machine even if it cannot be measured
            log.exception("background measurement failed")

    async def _tell_status(self) -> None:
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            if self.events.subscribers:
                try:
                    self._note_gpus((await self.events.refresh()).gpus)
                except Exception:  # the loop's edge: one failed status must not end the loop
                    log.exception("the status could not be sent")

    def _note_gpus(self, statuses: Iterable[GpuStatus]) -> None:
        """Read the capabilities again at once when a GPU has another fault, or none any more, or is read again."""
        before, self._gpus = self._gpus, frozenset((gpu.uuid, gpu.problem_code, gpu.released) for gpu in statuses)
        if before is not None and before != self._gpus:
            self._look_again.set()

    async def _watch_capabilities(self) -> None:
        while True:
            seconds = CAPABILITIES_EVERY_SECONDS
            try:
                found = await self.reporter.capabilities()
                if found.gpu_problem or _ABSENT & set(found.warning_codes):
                    seconds = TROUBLE_SECONDS
            except AgentError as error:
                log.warning("%s", error.detail)
            except Exception:  # the loop's edge
                log.exception("the capabilities could not be read")
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._look_again.wait()
            self._look_again.clear()

    def _folders_changed(self) -> None:
        """Read the capabilities again at once after a change of folders; the next status announces it."""
        self._look_again.set()

    async def _watch_identity(self) -> None:
        while True:
            await asyncio.sleep(IDENTITY_EVERY_SECONDS)
            try:
                self.take_identity()
            except (AgentIdentityBroken, OSError) as error:
                log.error("the new identity cannot be used; keeping the old one: %s", error)

    def take_identity(self) -> bool:
        """Load the identity that a rekey installed, if it is new. Raises AgentIdentityBroken and keeps the old one."""
        name = self._store.current_name()
        if name is None or name == self._rotation.loaded or self._rotation.busy:
            return False
        self._rotation.loaded = name  # also when it cannot be used: log it once, not every two seconds
        fresh = self._store.load()
        if fresh.node_uid != self.tls.identity.node_uid:
            raise AgentIdentityBroken("it belongs to another node; restart the agent to use it")
        self.tls.swap(fresh)
        self._rotation.forget()
        # Open connections used the old key and may be of a master that is no longer pinned.
        if self._runner is not None and self._runner.server is not None:
            for connection in self._runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
        if self._relay is not None:
            self._relay.cut()
        log.info("the identity was replaced; key fingerprint (SPKI SHA-256): %s", in_groups(fresh.spki))
        return True


async def _trim_heap() -> None:
    while True:
        await asyncio.sleep(heap.TRIM_EVERY_SECONDS)
        # A closed TLS connection is a cycle with 100 KiB of buffers. Few objects are made here, so the collector would
        # come for them once an hour; this takes milliseconds, since all that lives long is frozen.
        gc.collect()
        await asyncio.to_thread(heap.trim)


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel `tasks` until they have ended: a wait may lose a cancellation that arrives with its own end."""
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=1)


def _why_no_port(config: AgentConfig, error: OSError) -> str:
    where = f"{config.bind}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return f"port {config.port} is in use. Stop the process that uses it, or set another port in agent.json"
    if error.errno == errno.EACCES:
        return f"no permission to listen on {where}. Set a port above 1023 in agent.json"
    return f"cannot listen on {where}: {error.strerror}. Check bind and port in agent.json"


async def serve(config: AgentConfig, stop: asyncio.Event, probes: Probes | None = None) -> None:
    """Serve until `stop`. Raises CannotServe, MissingIdentity, AgentIdentityBroken, BrokenFence or Locked at start."""
    store = IdentityStore(config.state_dir)
    async with AsyncExitStack() as stack:
        stack.enter_context(exclusive(config.state_dir / LOCK_FILE))
        server = Server(config, store, probes or machine_probes(config))
        stack.push_async_callback(server.stop)
        await server.start()
        gc.collect()
        gc.freeze()  # long-lived objects: no collection needs to visit them again
        node_id = server.tls.identity.node_id
        log.info("agent %s of node %s listens on %s:%d", __version__, node_id, config.bind, server.port)
        notifier = Notifier()
        notifier.say("READY=1", f"STATUS=node {node_id}, port {server.port}")
        watchdog = asyncio.create_task(notifier.keep_watchdog())
        await stop.wait()
        watchdog.cancel()
        notifier.say("STOPPING=1")
        log.info("the agent stops; engines keep running")
