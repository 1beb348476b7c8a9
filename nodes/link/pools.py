"""Connections to agents: one pool per node and event loop, discarded when the node's endpoint changes."""

import asyncio
import atexit
import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from nodes.addresses import BadAddress, check
from nodes.link.threads import DatabaseThreads
from nodes.link.transport import Endpoint
from nodes.link.writer import GroupWriter

T = TypeVar("T")

CONNECT_SECONDS = 5.0
AT_ONCE = 50
"""Nodes called at the same moment for one purpose."""
_PER_NODE = 32
_IDLE_SECONDS = 0.4
"""Calls are few; an idle connection would outlive the revoke of its node."""
_END_SECONDS = 2.0
_LEAVE_SECONDS = 15.0
_DATABASE_THREADS = 4


class _GuardedResolver(AbstractResolver):
    """Resolves a node's host name at each new connection, and drops every address that must not be connected to."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        return [entry for entry in found if self._may_dial(entry["host"])] or self._refuse(host)

    async def close(self) -> None:
        await self._inner.close()

    def _may_dial(self, address: str) -> bool:
        try:
            check(address, self._endpoint.port, loopback_allowed=self._endpoint.loopback_allowed)
        except BadAddress:
            return False
        return True

    def _refuse(self, host: str) -> list[ResolveResult]:
        raise OSError(f"{host} does not resolve to an allowed address")


class AgentPools:
    """The pools of one event loop."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Endpoint, aiohttp.ClientSession]] = {}
        self._leaving: list[tuple[str, aiohttp.ClientSession]] = []
        self._closing: set[asyncio.Task[None]] = set()

    async def session(self, endpoint: Endpoint) -> aiohttp.ClientSession:
        """Return the session for `endpoint`; a session for a former endpoint of the node is closed with its
        connections.
        """
        known = self._open.get(endpoint.node_id)
        if known is not None and known[0] == endpoint and not known[1].closed:
            return known[1]
        session = _make_session(endpoint)
        self._open[endpoint.node_id] = (endpoint, session)
        if known is not None:
            if known[0].pins & endpoint.pins and known[0].server_name == endpoint.server_name:
                # Same node, renewed certificate: open requests finish on the old session, no new one starts there.
                self._leaving.append((endpoint.node_id, known[1]))
                asyncio.get_running_loop().call_later(_LEAVE_SECONDS, self._let_go, known[1])
            else:
                await known[1].close()
        return session

    async def close(self, node_id: str | None = None) -> None:
        """Close the connections to one node, streams too, or to all."""
        for key in [node_id] if node_id is not None else list(self._open):
            known = self._open.pop(key, None)
            if known is not None:
                await known[1].close()
        for key, session in list(self._leaving):
            if node_id in (None, key):
                self._leaving.remove((key, session))
                await session.close()

    def _let_go(self, session: aiohttp.ClientSession) -> None:
        self._leaving = [entry for entry in self._leaving if entry[1] is not session]
        task = asyncio.get_running_loop().create_task(session.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def single_use_session(endpoint: Endpoint) -> aiohttp.ClientSession:
    """Return a session that shares its connections with no other caller; the caller closes it."""
    return _make_session(endpoint)


def _make_session(endpoint: Endpoint) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=endpoint.ssl_context,
            limit=_PER_NODE,
            keepalive_timeout=_IDLE_SECONDS,
            resolver=_GuardedResolver(endpoint),
            use_dns_cache=False,
            happy_eyeballs_delay=None,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )


_pools: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AgentPools]" = weakref.WeakKeyDictionary()


def of_running_loop() -> AgentPools:
    """Return the pools of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _pools.get(loop)
    if found is None:
        found = _pools[loop] = AgentPools()
    return found


class LoopThread:
    """An event loop in a thread of its own, for callers that have none."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="node-link", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the loop and wait for it; the time-outs of `work` bound the wait."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def end(self) -> None:
        """Close every connection and end the thread, at the end of the process."""
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_close_all(), self.loop).result(_END_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()


async def _close_all() -> None:
    await of_running_loop().close()


_lock = threading.Lock()
_thread: LoopThread | None = None
_database: tuple[int, DatabaseThreads] | None = None
_writer: tuple[DatabaseThreads, GroupWriter] | None = None


def loop_thread() -> LoopThread:
    """Return the one loop thread of this process, started at the first call; a forked child gets its own."""
    global _thread  # noqa: PLW0603 - one thread a process
    with _lock:
        if _thread is None or _thread.pid != os.getpid():
            _thread = LoopThread()
        return _thread


def together(calls: Sequence[Coroutine[Any, Any, T]], at_once: int = AT_ONCE) -> list[T]:
    """Run calls to several nodes, `at_once` at a time; return the results in their order. Blocks.

    All calls have ended before the first error of one is raised.
    """

    async def gather() -> list[T | BaseException]:
        found: list[T | BaseException] = []
        for start in range(0, len(calls), at_once):
            found += await asyncio.gather(*calls[start : start + at_once], return_exceptions=True)
        return found

    results: list[T] = []
    for result in loop_thread().run(gather()):
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results


def database_threads() -> DatabaseThreads:
    """Return the threads of this process for database work beside event loops; a forked child gets its own."""
    global _database  # noqa: PLW0603 - one set a process
    with _lock:
        if _database is None or _database[0] != os.getpid():
            _database = (os.getpid(), DatabaseThreads(_DATABASE_THREADS, "node-link-db"))
        return _database[1]


def writer() -> GroupWriter:
    """Return the writer for all event loops of this process, in one of `database_threads`."""
    global _writer  # noqa: PLW0603 - one a process
    threads = database_threads()
    with _lock:
        if _writer is None or _writer[0] is not threads:
            _writer = (threads, GroupWriter(threads))
        return _writer[1]


def _end_of_process() -> None:
    if _thread is not None and _thread.pid == os.getpid():
        _thread.end()


atexit.register(_end_of_process)
