"""The arrival of request bodies: how slowly one may come, how many bytes wait in memory, in which turns they are read.

A body holds a place of the process while it arrives, so each byte that arrives buys it more time, up to a total.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from agent.common.http1.inline_task import as_task
from models_app.gateway import body as bodies
from models_app.gateway import errors
from models_app.gateway.downstream import Downstream
from models_app.gateway.limits import BodyBudget


@dataclass(frozen=True, slots=True)
class BodyPace:
    """The slowest pace at which a body may arrive. Only time spent waiting for the client counts."""

    idle_seconds: float = 30.0
    first_seconds: float = 20.0
    bytes_per_second: int = 4096
    total_seconds: float = 300.0

    def patience(self, waited: float, received: int) -> float:
        """Return for how many more seconds the next bytes are waited for."""
        bought = self.first_seconds + received / self.bytes_per_second - waited
        return min(self.idle_seconds, bought, self.total_seconds - waited)


class BodyArrival:
    """The body of one request: at most `limit_bytes`, at the pace, within the budget. Call `release` at its end."""

    __slots__ = ("_budget", "_downstream", "_held", "_key_id", "_limit", "_now", "_pace", "ended", "size", "waited")

    def __init__(
        self,
        downstream: Downstream,
        pace: BodyPace,
        budget: BodyBudget,
        now: Callable[[], float],
        *,
        key_id: int,
        limit_bytes: int,
    ) -> None:
        self._downstream = downstream
        self._pace = pace
        self._budget = budget
        self._now = now
        self._key_id = key_id
        self._limit = limit_bytes
        self._held = 0
        self.size = 0
        self.waited = 0.0
        self.ended = False

    def at_once(self) -> bytes | None:
        """Return the whole body if it has arrived already and is small, else None."""
        downstream = self._downstream
        if not downstream.whole:
            return None
        data = downstream.take()
        self._add(data, keep=True)
        self.ended = True
        return data

    async def whole(self) -> bytes | bytearray:
        """Return the whole body; a large one as a bytearray. Raises GatewayError and ClientLeft."""
        return await as_task(self._collect(keep=True))

    async def discard(self) -> None:
        """Read the body without keeping it. Raises GatewayError and ClientLeft."""
        await as_task(self._collect(keep=False))

    async def next(self, *, keep: bool = False) -> bytes:
        """Return the next bytes, b"" at the end. Raises GatewayError (408, 413) and ClientLeft."""
        data = self._downstream.take() or await as_task(self._next())
        if data:
            self._add(data, keep=keep)
        else:
            self.ended = True
        return data

    def release(self) -> None:
        """Give the kept bytes back to the budget: they were sent on, or refused."""
        if self._held:
            self._budget.give_back(self._key_id, self._held)
            self._held = 0

    def _add(self, data: bytes, *, keep: bool) -> None:
        self.size += len(data)
        if self.size > self._limit:
            raise errors.too_large(self._limit)
        if keep and self.size > bodies.WHOLE_PARSE_BYTES:
            more = self.size - self._held
            self._budget.take(self._key_id, more)
            self._held += more

    async def _collect(self, *, keep: bool) -> bytes | bytearray:
        body = bytearray()
        while True:
            data = self._downstream.take() or await self._next()
            if not data:
                self.ended = True
                return body if len(body) > bodies.WHOLE_PARSE_BYTES else bytes(body)
            self._add(data, keep=keep)
            if keep:
                body += data

    async def _next(self) -> bytes:
        started = self._now()
        try:
            async with asyncio.timeout(self._pace.patience(self.waited, self.size)):
                return await self._downstream.read()
        except TimeoutError:
            raise errors.too_slow() from None
        finally:
            self.waited += self._now() - started


class BodyReader:
    """Reads the members of large bodies in turns: one step of one body in each turn of the event loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def peek(self, body: bytes | bytearray) -> bodies.BodyPeek:
        """Return the needed members of `body`. Raises GatewayError (400)."""
        if len(body) <= bodies.WHOLE_PARSE_BYTES:
            return bodies.peek(body)
        return await as_task(self._peek(body))

    async def _peek(self, body: bytes | bytearray) -> bodies.BodyPeek:
        steps = bodies.peek_in_steps(body)
        while True:
            async with self._turn:  # fair: whoever waits is next, so a small body does not wait for a large one
                try:
                    next(steps)
                except StopIteration as end:
                    found: bodies.BodyPeek = end.value
                    return found
            await asyncio.sleep(0)
