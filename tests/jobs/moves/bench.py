"""Two real agents, the real gateway over the database, a worker's loop, and clients that never stop asking."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import aiohttp
import uvicorn

from jobs import worker
from jobs.models import Operation
from models_app import keys
from models_app.gateway.protocol import V1ProtocolFactory
from models_app.gateway.service import Gateway, GatewayOptions
from tests.jobs.real import RealAgent
from tests.models_app.things import PERSON
from tests.waiting import pause_async, until


class Door:
    """The gateway of a web process, in a thread: ``/v1`` on `port`."""

    def __init__(self) -> None:
        self.port = 0
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="door", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        # It listens only after the app said that it has started.
        until(lambda: self._server is not None and self._server.started, "the door to open")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    async def _main(self) -> None:
        gateway = Gateway(GatewayOptions(1024 * 1024, 256))

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await gateway(scope, receive, send)
                return
            await receive()
            await gateway.start()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await gateway.stop()
            await send({"type": "lifespan.shutdown.complete"})

        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=1, interface="asgi3",
            http=V1ProtocolFactory(gateway.serve),  # type: ignore[arg-type] # uvicorn takes any factory of protocols
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        await self._server.serve(sockets=[listening])


@dataclass
class Load:
    """Clients that ask in turn, plain and as streams; what they saw.

    `gap` is the longest time in which not one byte of an answer came to any of them.
    """

    port: int
    key: str
    model: str
    clients: int = 6
    tokens: int = 20
    sent: int = 0
    streams: int = 0
    failed: list[str] = field(default_factory=list)
    answered: int = 0
    heard_at: list[float] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def on(self) -> Iterator["Load"]:
        """Ask from the first answer on until the block ends; then each client finishes what it has begun."""
        asyncio.run(self._until_answered())
        thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="load", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join(60)
            assert not thread.is_alive()

    @property
    def gap(self) -> float:
        """Seconds."""
        moments = sorted(self.heard_at)
        return max((b - a for a, b in pairwise(moments)), default=0.0)

    async def _until_answered(self) -> None:
        """The gateway reads of a model that was just started within a second."""
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            while True:
                try:
                    return await self._ask(session, stream=False)
                except AssertionError:
                    await pause_async(0.1)

    async def _main(self) -> None:
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            await asyncio.gather(*(self._client(session, number) for number in range(self.clients)))
            # Transports say good-bye in the loop's next turns.
            await pause_async(0.05)

    async def _client(self, session: aiohttp.ClientSession, number: int) -> None:
        while not self._over.is_set():
            stream = (self.sent + number) % 2 == 0
            self.sent += 1
            self.streams += stream
            try:
                await self._ask(session, stream=stream)
                self.answered += 1
            except (aiohttp.ClientError, TimeoutError, AssertionError) as error:
                self.failed.append(f"{time.monotonic():.2f} {type(error).__name__}: {error}"[:300])
                await pause_async(0.2)

    async def _ask(self, session: aiohttp.ClientSession, *, stream: bool) -> None:
        body = {
            "model": self.model,
            "stream": stream,
            "max_tokens": self.tokens,
            "messages": [{"role": "user", "content": "Count from one to a hundred."}],
        }
        url, headers = f"http://127.0.0.1:{self.port}/v1/chat/completions", {"Authorization": f"Bearer {self.key}"}
        async with session.post(url, json=body, headers=headers) as answer:
            parts = []
            async for part in answer.content.iter_any():
                if answer.status == 200:
                    self.heard_at.append(time.monotonic())
                parts.append(part)
            text = b"".join(parts)
            assert answer.status == 200, text
        if stream:
            events = [line for line in text.split(b"\n") if line.startswith(b"data: ")]
            assert events, text
            assert events[-1] == b"data: [DONE]", events[-1]
            assert not any(b'"error"' in event for event in events), text
        else:
            assert json.loads(text)["choices"], text


class TwoNodes:
    """Nodes ``local`` and ``next``, a door before them, and a key for it."""

    def __init__(self, folder: Path) -> None:
        self.agents = {name: RealAgent(folder / name, name) for name in ("local", "next")}
        _, self.key = keys.create("load", actor=PERSON)

    @contextmanager
    def up(self) -> Iterator["TwoNodes"]:
        """Both agents serve within the block; their engines end with it."""
        for agent in self.agents.values():
            agent.begin()
            agent.connect()
        try:
            yield self
        finally:
            for agent in self.agents.values():
                agent.clear()

    def load(self, door: Door, model: str, **also: Any) -> Load:
        """Clients of `model`."""
        return Load(door.port, self.key, model, **also)


def run(operation: Operation, seconds: float = 60) -> Operation:
    """A worker's loop, until the operation is over."""

    def over() -> bool:
        worker.run(operation.pk)
        operation.refresh_from_db()
        return operation.finished_at is not None

    try:
        until(over, f"{operation.kind} to end", seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}: {operation.stage} {operation.progress} {operation.error}") from error
    return operation


def at(operation: Operation, stage: str, seconds: float = 40) -> Operation:
    """A worker's loop, until the operation is at `stage`."""

    def there() -> bool:
        worker.run(operation.pk)
        operation.refresh_from_db()
        assert operation.finished_at is None, (operation.stage, operation.outcome, operation.error)
        return operation.stage == stage

    until(there, f"{operation.kind} to be at {stage}", seconds)
    return operation
