"""The simulated engine as one shard of several: they meet at rank 0 over TCP, and serve once all have joined.

The agent runs this file as a script. Rank 0 listens at the rendezvous and serves requests once every shard has joined;
the others serve none. A lost shard makes the replica unavailable for good, and when rank 0 is lost the others exit.
Messages are lines of JSON; a line every few seconds is the heartbeat.
"""

import argparse
import asyncio
import contextlib
import errno
import importlib.util
import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

HEARTBEAT_SECONDS = 1.0
SILENCE_SECONDS = 5.0
_RETRY_SECONDS = 0.25
_LINE_BYTES = 4096


def _engine() -> ModuleType:
    """Return the module next to this one; as a script this one knows no package."""
    if __package__:
        return importlib.import_module("agent.runtimes.sim_engine")
    path = Path(__file__).with_name("sim_engine.py")
    spec = importlib.util.spec_from_file_location("sim_engine", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018, S101 - the file is next to this one
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ShardRendezvous:
    """One shard's side of the rendezvous."""

    def __init__(self, name: str, rank: int, world_size: int, host: str, port: int) -> None:
        self._hello = {"meeting": name, "worldSize": world_size}
        self._rank = rank
        self._world_size = world_size
        self._at = (host, port)
        self._joined: dict[int, asyncio.StreamWriter] = {}
        self._complete = False
        self._lost = ""
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Event | None = None

    def unavailable(self) -> tuple[int, str] | None:
        """Return 503 while shards are missing, 500 once one was lost, None when requests can be served."""
        if self._lost:
            return 500, self._lost
        if not self._complete:
            count = f"{len(self._joined) + 1} of {self._world_size} shards have joined" if not self._rank else "waiting"
            return 503, f"loading: {count}"
        return None

    @property
    def is_broken(self) -> bool:
        """True once a shard that had joined was lost."""
        return bool(self._lost)

    @contextlib.asynccontextmanager
    async def join(self, ended: asyncio.Event) -> AsyncIterator[None]:
        """Take part; `ended` is set when this shard has become useless. OSError when the port is taken."""
        self._ended = ended
        await self._begin()
        try:
            yield
        finally:
            await self._end()

    async def _begin(self) -> None:
        """Listen as rank 0, else connect to it."""
        if self._rank:
            self._task = asyncio.create_task(self._follow_rank_0())
            return
        host, port = self._at
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=_LINE_BYTES)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            # The address is that of a router or of the machine around this container.
            self._server = await asyncio.start_server(self._accept, None, port, limit=_LINE_BYTES)
        _say(f"waiting for {self._world_size - 1} shards at {host}:{port}")

    async def _end(self) -> None:
        """Close every connection."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._connections, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs this in a task
        self._connections.add(task)
        try:
            with contextlib.suppress(TimeoutError, ConnectionError):
                await self._serve_shard(reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve_shard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the connection of one shard from its first line to its last."""
        async with asyncio.timeout(SILENCE_SECONDS):
            hello = await _line(reader)
        rank = hello.get("rank") if hello else None
        if hello is None or {name: hello.get(name) for name in self._hello} != self._hello:
            await _send(writer, {"refused": "another replica meets here"})
            return
        if not isinstance(rank, int) or not 0 < rank < self._world_size or rank in self._joined or self._complete:
            await _send(writer, {"refused": f"rank {rank} is not expected"})
            return
        self._joined[rank] = writer
        _say(f"rank {rank} has joined")
        if len(self._joined) == self._world_size - 1:
            self._complete = True
            _say(f"all {self._world_size} shards have joined")
        with contextlib.suppress(ConnectionError):
            await self._heartbeat(reader, writer)
        del self._joined[rank]
        if self._complete and not self._lost:
            self._lost = f"shard {rank} is lost"
        _say(f"rank {rank} has left")

    async def _heartbeat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Exchange heartbeats until the other side is silent."""
        last = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - last < SILENCE_SECONDS:
            await _send(writer, {"whole": self._complete})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS if self._complete else _RETRY_SECONDS):
                    if await _line(reader) is None:
                        return
                last = asyncio.get_running_loop().time()
            if self._complete:
                await asyncio.sleep(HEARTBEAT_SECONDS / 2)

    async def _follow_rank_0(self) -> None:
        """As another rank: connect to rank 0 until it answers, then stay connected while it lives."""
        while not self._lost:
            try:
                reader, writer = await asyncio.open_connection(*self._at, limit=_LINE_BYTES)
            except OSError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            try:
                await self._listen(reader, writer)
            except (OSError, TimeoutError) as error:
                self._lose(f"the connection to rank 0 broke ({error or 'silence'})")
            finally:
                writer.close()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _send(writer, {**self._hello, "rank": self._rank})
        while True:
            async with asyncio.timeout(SILENCE_SECONDS):
                message = await _line(reader)
            if message is None:
                self._lose("rank 0 is lost")
                return
            if "refused" in message:
                # Another replica's rank 0 may listen there until ours does.
                _say(f"rank 0 refuses this shard: {message['refused']}")
                return
            if message.get("whole") and not self._complete:
                self._complete = True
                _say("all shards have joined")
            await _send(writer, {"rank": self._rank})

    def _lose(self, why: str) -> None:
        """Give up rank 0. Before all have joined a new try follows; after that this shard is useless."""
        if self._complete:
            self._lost = why
            _say(f"{why}: this shard exits")
            if self._ended is not None:
                self._ended.set()


async def _line(reader: asyncio.StreamReader) -> Mapping[str, Any] | None:
    """Return the next message; None at the end of the connection, or for an invalid message."""
    try:
        message = json.loads(await reader.readline() or b"null")
    except (ValueError, ConnectionError):
        return None
    return message if isinstance(message, dict) else None


async def _send(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


def _say(text: str) -> None:
    sys.stderr.write(f"shard: {text}\n")
    sys.stderr.flush()


def parser(engine: ModuleType) -> argparse.ArgumentParser:
    """Return the parser of the engine's options and those of the rendezvous."""
    parse: argparse.ArgumentParser = engine.parser()
    parse.add_argument("--meeting", required=True)
    parse.add_argument("--rank", type=int, required=True)
    parse.add_argument("--world-size", type=int, required=True)
    parse.add_argument("--rendezvous-host", required=True)
    parse.add_argument("--rendezvous-port", type=int, required=True)
    return parse


def main(arguments: list[str]) -> int:
    """Serve as one shard until SIGTERM, a requested fault, or the loss of rank 0. Returns the exit code."""
    engine = _engine()
    options = parser(engine).parse_args(arguments)
    at = options.rendezvous_host, options.rendezvous_port
    rendezvous = ShardRendezvous(options.meeting, options.rank, options.world_size, *at)
    code = int(engine.run(options, rendezvous.unavailable, rendezvous.join))
    return code or int(rendezvous.is_broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
