"""Connections to agents: kept alive, a few idle ones warm on every node, all closed when a node's trust changes."""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from agent.wire.http1.client import ConnectFailed, Connection
from models_app.gateway.table import NodeState, Reachable, Table
from nodes.addresses import BadAddress, check

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 5.0
WARM_CONNECTIONS = 4
DIALS_AT_ONCE = 4
IDLE_SECONDS = 300.0
"""Below the keep-alive time of the agent, so that it is mostly this side that lets go."""
MAX_IDLE = 256
SILENCE_SECONDS = 15
"""A node that has not acknowledged anything for so long is away, as it is for the watcher."""
WARM_RETRY_SECONDS = 5.0


def _notice_silence(transport: asyncio.BaseTransport) -> None:
    """Let the kernel end a connection whose other side no longer acknowledges: a pulled cable sends no word.

    What was sent must be acknowledged within SILENCE_SECONDS; while only an answer is awaited, probes ask as long.
    """
    connected = transport.get_extra_info("socket")
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_SECONDS // 3)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_SECONDS // 3)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Who waits for a connection, and since when."""

    future: "asyncio.Future[Connection]"
    since: float


class NodePool:
    """The connections to one node, at one address with one TLS context."""

    def __init__(self, peer: Reachable, *, warm: int = WARM_CONNECTIONS) -> None:
        self.peer = peer
        self.loop = asyncio.get_running_loop()
        self._warm = warm
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._warming: asyncio.Task[None] | None = None
        self._queue: deque[_Waiting] = deque()
        self._dials: set[asyncio.Task[None]] = set()
        self._dialling = 0
        self._reached_at = 0.0
        self._not_before = 0.0
        self._retired = False

    @property
    def idle_count(self) -> int:
        """How many connections wait for work."""
        return len(self._idle)

    @property
    def open_count(self) -> int:
        """How many connections stand, idle or not."""
        return len(self._open)

    def take_idle(self) -> Connection | None:
        """The freshest idle connection, None when there is none."""
        now = self.loop.time()
        while self._idle:
            connection = self._idle.pop()
            if connection.alive and now - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.abort()
        return None

    async def obtain(self) -> Connection:
        """A connection for one who found none idle: a new one, or one that became free meanwhile. Raises ConnectFailed.

        Few handshakes go on at a time: each takes milliseconds of both sides, and of two hundred at once on a busy
        machine the last would be over their time.
        """
        waiting = _Waiting(self.loop.create_future(), self.loop.time())
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
            self._refuse_waiting(error)
        else:
            self._reached_at = self.loop.time()
            self._offer(connection)
        finally:
            self._dialling -= 1
            self._dial_more()

    def _offer(self, connection: Connection) -> None:
        while self._queue:
            future = self._queue.popleft().future
            if not future.done():
                future.set_result(connection)
                return
        self._idle.append(connection)

    def _refuse_waiting(self, error: ConnectFailed) -> None:
        """Tell the first in the queue, and all others since whose coming the node was not reached either."""
        first = True
        while self._queue and (first or self._queue[0].since > self._reached_at):
            future = self._queue.popleft().future
            if not future.done():
                future.set_exception(error)
                first = False

    async def connect(self) -> Connection:
        """A new connection, its handshake done. Raises ConnectFailed within CONNECT_SECONDS."""
        peer = self.peer
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._dial()
        except TimeoutError as error:
            raise ConnectFailed(f"{peer.host} port {peer.port} did not answer within {CONNECT_SECONDS:g} s") from error
        except (OSError, ssl.SSLError) as error:
            raise ConnectFailed(str(error) or type(error).__name__) from error
        if not connection.alive:
            raise ConnectFailed("the node closed the connection at once")
        if self._retired:
            connection.abort()
            raise ConnectFailed("the node's address or trust changed meanwhile")
        connection.on_lost = self._lost
        self._open.add(connection)
        return connection

    async def _dial(self) -> Connection:
        peer, loop = self.peer, self.loop
        failed: Exception = OSError(f"{peer.host} has no address that may be dialled")
        for *_, address in await loop.getaddrinfo(peer.host, peer.port, type=socket.SOCK_STREAM):
            try:
                # At every connection: a name may point elsewhere than when the node was approved.
                check(str(address[0]), peer.port, loopback_allowed=peer.loopback_allowed)
                transport, connection = await loop.create_connection(
                    lambda: Connection(loop),
                    str(address[0]),
                    peer.port,
                    ssl=peer.ssl_context,
                    server_hostname=peer.server_name if peer.ssl_context is not None else None,
                )
            except (OSError, ssl.SSLError, BadAddress) as error:
                failed = error
            else:
                _notice_silence(transport)
                return connection
        raise ConnectFailed(str(failed) or type(failed).__name__)

    def release(self, connection: Connection) -> None:
        """Give a connection back after its exchange; one that cannot carry another is closed."""
        if self._retired or not connection.reusable or len(self._idle) >= MAX_IDLE:
            connection.abort()
            return
        connection.rest()
        if self._queue:
            self._offer(connection)
        else:
            self._idle.append(connection)

    def tend(self) -> None:
        """Let go of what was idle for too long, and begin to open what the warm minimum lacks."""
        now = self.loop.time()
        keep = [c for c in self._idle if c.alive and now - c.idle_since < IDLE_SECONDS]
        for connection in self._idle:
            if connection not in keep:
                connection.abort()
        self._idle = keep
        if self._retired or len(self._idle) >= self._warm or now < self._not_before:
            return
        if self._warming is None or self._warming.done():
            self._warming = self.loop.create_task(self._warm_up(), name=f"warm {self.peer.node_id}")

    async def _warm_up(self) -> None:
        # One at a time: each handshake takes milliseconds of the loop that streams run on.
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
                self._idle.insert(0, connection)

    def retire(self, *, cut: bool) -> None:
        """Take no more work. `cut` closes what is under way too: the node's trust is gone or changed."""
        self._retired = True
        if self._warming is not None:
            self._warming.cancel()
        for connection in list(self._open) if cut else self._idle:
            connection.abort()
        while self._queue:
            self._refuse_waiting(ConnectFailed("the node's address or trust changed meanwhile"))
        self._idle = []

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
            if not connection.served:
                # An agent that refuses this master does so behind the handshake: do not knock without a pause.
                self._not_before = self.loop.time() + WARM_RETRY_SECONDS


class Pools:
    """One pool a node, kept in step with the routing table."""

    def __init__(self, *, warm: int = WARM_CONNECTIONS) -> None:
        self._warm = warm
        self._pools: dict[str, NodePool] = {}
        self._leaving: list[NodePool] = []
        """Pools that were replaced while requests were under way on them; these end well unless trust ends first."""

    def of(self, peer: Reachable) -> NodePool:
        """The pool of connections to `peer`."""
        pool = self._pools.get(peer.node_id)
        if pool is None or pool.peer is not peer:
            if pool is not None and pool.peer == peer:
                pool.peer = peer  # of a newer table, the same
            else:
                pool = self._replace(peer)
        return pool

    def sync(self, table: Table) -> None:
        """Follow the table: close what is no longer trusted, move with addresses, keep nodes that serve models warm."""
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
        """(open, idle) connections by node."""
        return {node_id: (pool.open_count, pool.idle_count) for node_id, pool in self._pools.items()}

    def close(self) -> None:
        """Close every connection."""
        for pool in self._pools.values():
            pool.retire(cut=True)
            self._cut_leaving(pool.peer.node_id)
        self._pools.clear()

    def _cut_leaving(self, node_id: str) -> None:
        for pool in self._leaving:
            if pool.peer.node_id == node_id:
                pool.retire(cut=True)

    def _replace(self, peer: Reachable) -> NodePool:
        old = self._pools.get(peer.node_id)
        if old is not None:
            # A renewed certificate comes by a pin that stood before it: what is under way ends well on the old lines.
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
