"""The simulated engine as one shard of several: they meet at rank 0 over TCP, and none serves before all are there.

Run as a script by the agent. Rank 0 listens at the rendezvous and answers requests once every shard has joined; the
others answer none. A shard that is lost closes the whole for good, and when rank 0 goes the others end. Messages are
lines of JSON; a line at least every few seconds shows that the other side lives.
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

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 5.0
_AGAIN_SECONDS = 0.25
_LINE_BYTES = 4096


def _engine() -> ModuleType:
    """The module beside this one; as a script this one knows no package."""
    if __package__:
        return importlib.import_module("agent.runtimes.sim_engine")
    path = Path(__file__).with_name("sim_engine.py")
    spec = importlib.util.spec_from_file_location("sim_engine", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018, S101 - the file stands beside this one
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Meeting:
    """One shard's side of the rendezvous."""

    def __init__(self, name: str, rank: int, world_size: int, host: str, port: int) -> None:
        self._hello = {"meeting": name, "worldSize": world_size}
        self._rank = rank
        self._world_size = world_size
        self._at = (host, port)
        self._joined: dict[int, asyncio.StreamWriter] = {}
        self._whole = False
        self._lost = ""
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Event | None = None

    def closed(self) -> tuple[int, str] | None:
        """503 while shards are missing, 500 once one was lost, and never open on a shard that does not answer."""
        if self._lost:
            return 500, self._lost
        if not self._whole:
            count = f"{len(self._joined) + 1} of {self._world_size} shards have joined" if not self._rank else "waiting"
            return 503, f"loading: {count}"
        return None

    @property
    def is_broken(self) -> bool:
        """Whether a shard was lost that had joined."""
        return bool(self._lost)

    @contextlib.asynccontextmanager
    async def attend(self, ended: asyncio.Event) -> AsyncIterator[None]:
        """Take part; `ended` is set when this shard is of no use any more. OSError when the port is taken."""
        self._ended = ended
        await self._begin()
        try:
            yield
        finally:
            await self._end()

    async def _begin(self) -> None:
        """Listen as rank 0, else go and look for it."""
        if self._rank:
            self._task = asyncio.create_task(self._take_part())
            return
        host, port = self._at
        try:
            self._server = await asyncio.start_server(self._greet, host, port, limit=_LINE_BYTES)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            # The address is that of a router or of the machine around this container.
            self._server = await asyncio.start_server(self._greet, None, port, limit=_LINE_BYTES)
        _say(f"waits for {self._world_size - 1} shards at {host}:{port}")

    async def _end(self) -> None:
        """Close every line."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._calls, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs this in a task
        self._calls.add(task)
        try:
            with contextlib.suppress(TimeoutError, ConnectionError):
                await self._keep(reader, writer)
        finally:
            self._calls.discard(task)
            writer.close()

    async def _keep(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One shard, from its first line to its last."""
        async with asyncio.timeout(SILENCE_SECONDS):
            hello = await _line(reader)
        rank = hello.get("rank") if hello else None
        if hello is None or {name: hello.get(name) for name in self._hello} != self._hello:
            await _send(writer, {"refused": "this is another meeting"})
            return
        if not isinstance(rank, int) or not 0 < rank < self._world_size or rank in self._joined or self._whole:
            await _send(writer, {"refused": f"there is no place for rank {rank}"})
            return
        self._joined[rank] = writer
        _say(f"rank {rank} has joined")
        if len(self._joined) == self._world_size - 1:
            self._whole = True
            _say(f"all {self._world_size} shards have joined")
        with contextlib.suppress(ConnectionError):
            await self._beat(reader, writer)
        del self._joined[rank]
        if self._whole and not self._lost:
            self._lost = f"shard {rank} is lost"
        _say(f"rank {rank} is gone")

    async def _beat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the other side is silent."""
        last = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - last < SILENCE_SECONDS:
            await _send(writer, {"whole": self._whole})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS if self._whole else _AGAIN_SECONDS):
                    if await _line(reader) is None:
                        return
                last = asyncio.get_running_loop().time()
            if self._whole:
                await asyncio.sleep(BEAT_SECONDS / 2)

    async def _take_part(self) -> None:
        """A shard other than rank 0: look for it until it is there, then stay for as long as it does."""
        while not self._lost:
            try:
                reader, writer = await asyncio.open_connection(*self._at, limit=_LINE_BYTES)
            except OSError:
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            try:
                await self._listen(reader, writer)
            except (OSError, TimeoutError) as error:
                self._leave(f"the line to rank 0 broke ({error or 'silence'})")
            finally:
                writer.close()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _send(writer, {**self._hello, "rank": self._rank})
        while True:
            async with asyncio.timeout(SILENCE_SECONDS):
                said = await _line(reader)
            if said is None:
                self._leave("rank 0 is gone")
                return
            if "refused" in said:
                # Another's rank 0 may listen there until ours does.
                _say(f"rank 0 does not know this shard: {said['refused']}")
                return
            if said.get("whole") and not self._whole:
                self._whole = True
                _say("joined; all shards are there")
            await _send(writer, {"rank": self._rank})

    def _leave(self, why: str) -> None:
        """Before all were there another try is made; after that this shard is of no use any more."""
        if self._whole:
            self._lost = why
            _say(f"{why}: this shard ends")
            if self._ended is not None:
                self._ended.set()


async def _line(reader: asyncio.StreamReader) -> Mapping[str, Any] | None:
    """The next message; None at the end of the line, or for what is no message."""
    try:
        said = json.loads(await reader.readline() or b"null")
    except (ValueError, ConnectionError):
        return None
    return said if isinstance(said, dict) else None


async def _send(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


def _say(text: str) -> None:
    sys.stderr.write(f"shard: {text}\n")
    sys.stderr.flush()


def parser(engine: ModuleType) -> argparse.ArgumentParser:
    """The engine's options and those of the meeting."""
    parse: argparse.ArgumentParser = engine.parser()
    parse.add_argument("--meeting", required=True)
    parse.add_argument("--rank", type=int, required=True)
    parse.add_argument("--world-size", type=int, required=True)
    parse.add_argument("--rendezvous-host", required=True)
    parse.add_argument("--rendezvous-port", type=int, required=True)
    return parse


def main(arguments: list[str]) -> int:
    """Serve as one shard until SIGTERM, a fault that was asked for, or the end of rank 0. Exit code."""
    engine = _engine()
    options = parser(engine).parse_args(arguments)
    at = options.rendezvous_host, options.rendezvous_port
    meeting = Meeting(options.meeting, options.rank, options.world_size, *at)
    code = int(engine.run(options, meeting.closed, meeting.attend))
    return code or int(meeting.is_broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
