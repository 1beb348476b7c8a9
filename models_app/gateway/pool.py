"""Connections to agents: kept alive, a few warm per node, all closed when a node's trust changes."""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from agent.common.http1.client import ClientConnection, ConnectFailed
from agent.common.http1.idle import IdleConnections
from models_app.gateway.table import AgentEndpoint, NodeState, RoutingTable
from nodes.addresses import BadAddress, check

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 5.0
WARM_CONNECTIONS = 4
DIALS_AT_ONCE = 4
IDLE_SECONDS = 300.0
"""Below the agent's keep-alive time, so that usually the gateway closes an idle connection."""
MAX_IDLE = 256
SILENCE_SECONDS = 15
"""A node that has acknowledged nothing for this long counts as offline, as in the watcher."""
WARM_RETRY_SECONDS = 5.0


def _detect_silence(transport: asyncio.BaseTransport) -> None:
    """Let the kernel close a connection whose peer no longer acknowledges: a pulled cable sends nothing.

    Sent bytes must be acknowledged within SILENCE_SECONDS; an idle connection is probed with the same limit.
    """
    connected = transport.get_extra_info("socket")
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_SECONDS // 3)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_SECONDS // 3)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)


@dataclass(frozen=True, slots=True)
class _PoolWaiter:
    """A request that waits for a connection, and the time since when."""

    future: "asyncio.Future[ClientConnection]"
    since: float


class NodePool:
    """The connections to one node, at one address, with one TLS context."""

    def __init__(self, peer: AgentEndpoint, *, warm: int = WARM_CONNECTIONS) -> None:
        self.peer = peer
        self.loop = asyncio.get_running_loop()
        self._warm = warm
        self._idle = IdleConnections(idle_seconds=IDLE_SECONDS, capacity=MAX_IDLE)
        self._open: set[ClientConnection] = set()
        self._warming: asyncio.Task[None] | None = None
        self._queue: deque[_PoolWaiter] = deque()
        self._dials: set[asyncio.Task[None]] = set()
        self._dialling = 0
        self._reached_at = 0.0
        self._not_before = 0.0
        self._retired = False

    @property
    def idle_count(self) -> int:
        """Return the number of idle connections."""
        return len(self._idle)

    @property
    def open_count(self) -> int:
        """Return the number of open connections, idle or busy."""
        return len(self._open)

    def take_idle(self) -> ClientConnection | None:
        """Return the most recently used idle connection, None without one."""
        return self._idle.take(self.loop.time())

    async def obtain(self) -> ClientConnection:
        """Return a new connection, or one released in the meantime; for use after `take_idle`. Raises ConnectFailed.

        Few handshakes run at a time: each takes milliseconds on both sides, and of two hundred at once on a busy
        machine the last would time out.
        """
        waiting = _PoolWaiter(self.loop.create_future(), self.loop.time())
        self._queue.append(waiting)
        self._dial_more()
        try:
            return await waiting.future
        except asyncio.CancelledError:
            if waiting.future.done() and not waiting.future.cancelled() and waiting.future.exception() is None:
                self._offer(waiting.future.result())
            raise

    def _dial_more(self) -> None:
        while self._dialling < min(DIALS_AT_ONCE, len(self._queue)):
            self._dialling += 1
            dial = self.loop.create_task(self._dial_for_queue(), name=f"dial {self.peer.node_id}")
            self._dials.add(dial)
            dial.add_done_callback(self._dials.discard)

    async def _dial_for_queue(self) -> None:
        try:
            connection = await self.connect()
        except ConnectFailed as error:
            self._fail_waiters(error)
        else:
            self._reached_at = self.loop.time()
            self._offer(connection)
        finally:
            self._dialling -= 1
            self._dial_more()

    def _offer(self, connection: ClientConnection) -> None:
        while self._queue:
            future = self._queue.popleft().future
            if not future.done():
                future.set_result(connection)
                return
        self._idle.add(connection)

    def _fail_waiters(self, error: ConnectFailed) -> None:
        """Fail the first waiter, and all others that joined the queue after the node was last reached."""
        first = True
        while self._queue and (first or self._queue[0].since > self._reached_at):
            future = self._queue.popleft().future
            if not future.done():
                future.set_exception(error)
                first = False

    async def connect(self) -> ClientConnection:
        """Open a connection and complete its handshake. Raises ConnectFailed, within CONNECT_SECONDS."""
        peer = self.peer
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._dial()
        except TimeoutError as error:
            raise ConnectFailed(f"{peer.host} port {peer.port} did not respond within {CONNECT_SECONDS:g} s") from error
        except (OSError, ssl.SSLError) as error:
            raise ConnectFailed(str(error) or type(error).__name__) from error
        if not connection.alive:
            raise ConnectFailed("the node closed the connection immediately")
        if self._retired:
            connection.abort()
            raise ConnectFailed("the node's address or trust has changed")
        connection.on_lost = self._lost
        self._open.add(connection)
        return connection

    async def _dial(self) -> ClientConnection:
        peer, loop = self.peer, self.loop
        failed: Exception = OSError(f"{peer.host} has no allowed address")
        for *_, address in await loop.getaddrinfo(peer.host, peer.port, type=socket.SOCK_STREAM):
            try:
                # Checked for every connection: DNS may have changed since the node was approved.
                check(str(address[0]), peer.port, loopback_allowed=peer.loopback_allowed)
                transport, connection = await loop.create_connection(
                    lambda: ClientConnection(loop),
                    str(address[0]),
                    peer.port,
                    ssl=peer.ssl_context,
                    server_hostname=peer.server_name if peer.ssl_context is not None else None,
                )
            except (OSError, ssl.SSLError, BadAddress) as error:
                failed = error
            else:
                _detect_silence(transport)
                return connection
        raise ConnectFailed(str(failed) or type(failed).__name__)

    def release(self, connection: ClientConnection) -> None:
        """Take a connection back after its response; close it if it cannot be reused."""
        if self._retired or not self._idle.accepts(connection):
            connection.abort()
            return
        connection.rest()
        if self._queue:
            self._offer(connection)
        else:
            self._idle.add(connection)

    def tend(self) -> None:
        """Close connections that were idle too long, and open new ones up to the warm minimum."""
        now = self.loop.time()
        self._idle.close_expired(now)
        if self._retired or len(self._idle) >= self._warm or now < self._not_before:
            return
        if self._warming is None or self._warming.done():
            self._warming = self.loop.create_task(self._warm_up(), name=f"warm {self.peer.node_id}")

    async def _warm_up(self) -> None:
        # One at a time: each handshake blocks the loop that streams run on for milliseconds.
        while not self._retired and len(self._idle) < self._warm:
            try:
                connection = await self.connect()
            except ConnectFailed as error:
                self._not_before = self.loop.time() + WARM_RETRY_SECONDS
                log.info("no warm connection to the node", node=self.peer.node_id, reason=str(error))
                return
            connection.idle_since = self.loop.time()
            if self._queue:
                self._offer(connection)
            else:
                self._idle.add_oldest(connection)

    def retire(self, *, cut: bool) -> None:
        """Accept no more requests. `cut` closes busy connections too: the node's trust was removed or changed."""
        self._retired = True
        if self._warming is not None:
            self._warming.cancel()
        for connection in list(self._open) if cut else ():
            connection.abort()
        self._idle.close()
        while self._queue:
            self._fail_waiters(ConnectFailed("the node's address or trust has changed"))

    def _lost(self, connection: ClientConnection) -> None:
        self._open.discard(connection)
        if self._idle.discard(connection) and not connection.served:
            # An agent that refuses this master does so after the handshake: do not redial in a tight loop.
            self._not_before = self.loop.time() + WARM_RETRY_SECONDS


class UpstreamPools:
    """The pools of all nodes, synchronized with the routing table."""

    def __init__(self, *, warm: int = WARM_CONNECTIONS) -> None:
        self._warm = warm
        self._pools: dict[str, NodePool] = {}
        self._leaving: list[NodePool] = []
        """Replaced pools with requests in flight, which may finish unless the node's trust ends first."""

    def of(self, peer: AgentEndpoint) -> NodePool:
        """Return the pool of `peer`; create or replace it if needed."""
        pool = self._pools.get(peer.node_id)
        if pool is None or pool.peer is not peer:
            if pool is not None and pool.peer == peer:
                pool.peer = peer  # equal, from a newer table
            else:
                pool = self._replace(peer)
        return pool

    def sync(self, table: RoutingTable) -> None:
        """Follow the table: close untrusted connections, follow addresses, keep nodes with routed models warm."""
        routed = {route.node_id for model in table.models.values() for route in model.routes}
        for node_id in [node_id for node_id in self._pools if node_id not in table.endpoints]:
            self._pools.pop(node_id).retire(cut=True)
            self._cut_leaving(node_id)
        self._leaving = [pool for pool in self._leaving if pool.open_count]
        for node_id, peer in table.endpoints.items():
            if node_id in routed and table.nodes.get(node_id) is NodeState.SERVING:
                self.of(peer).tend()
            elif node_id in self._pools:
                self.of(peer)

    def counts(self) -> Mapping[str, tuple[int, int]]:
        """Return (open, idle) connections by node id."""
        return {node_id: (pool.open_count, pool.idle_count) for node_id, pool in self._pools.items()}

    def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            pool.retire(cut=True)
            self._cut_leaving(pool.peer.node_id)
        self._pools.clear()

    def _cut_leaving(self, node_id: str) -> None:
        for pool in self._leaving:
            if pool.peer.node_id == node_id:
                pool.retire(cut=True)

    def _replace(self, peer: AgentEndpoint) -> NodePool:
        old = self._pools.get(peer.node_id)
        if old is not None:
            # A renewed certificate has a pin that was trusted before: requests in flight may finish on old connections.
            renewed = bool(old.peer.pins & peer.pins)
            trust_changed = old.peer.ssl_context is not peer.ssl_context and not renewed
            cut = trust_changed or old.peer.server_name != peer.server_name
            old.retire(cut=cut)
            if cut:
                self._cut_leaving(peer.node_id)
            else:
                self._leaving.append(old)
        pool = self._pools[peer.node_id] = NodePool(peer, warm=self._warm)
        return pool
