"""Sends requests to an enroll listener from many addresses of 127.0.0.0/8 at once."""

import asyncio
import ssl
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tests.bench.simfleet.bad_requests import Bad
from tests.waiting import pause_async

ANSWER_SECONDS = 30.0
_CONNECTION_REQUESTS = 12


@dataclass
class Outcome:
    """The responses: statuses by kind. A connection that was closed without an answer counts as 0."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    bodies: list[bytes] = field(default_factory=list)

    def count(self, lowest: int, highest: int) -> int:
        """Return the number of answers in that range."""
        return sum(number for (_, status), number in self.statuses.items() if lowest <= status <= highest)

    def lines(self) -> Iterator[str]:
        """One line a kind, for a person."""
        for kind in sorted({kind for kind, _ in self.statuses}):
            found = {status: number for (name, status), number in self.statuses.items() if name == kind}
            yield f"{kind}: " + " ".join(f"{status or 'closed'}={number}" for status, number in sorted(found.items()))


def stranger() -> ssl.SSLContext:
    """A client that takes any certificate, as an intruder would."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Line:
    """One connection from one address, made anew when the other side ended it."""

    def __init__(self, port: int, source: str, context: ssl.SSLContext) -> None:
        self._port, self._source, self._context = port, source, context
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._sent = 0

    async def ask(self, data: bytes, *, ends: bool = False) -> tuple[int, bytes]:
        """Send and read one answer; status 0 when there was none. Raises OSError when nobody listens."""
        reader, writer = await self._open()
        self._sent += 1
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                with suppress(ConnectionError, ssl.SSLError):
                    writer.write(data)
                    await writer.drain()
                    if ends and not writer.transport.is_closing():
                        with suppress(NotImplementedError):
                            writer.write_eof()
                status, body = await _answer(reader)
        except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError, TimeoutError):
            status, body = 0, b""
        if ends or not status or self._sent >= _CONNECTION_REQUESTS or reader.at_eof():
            self.close()
        return status, body

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None or self._streams[1].transport.is_closing() or self._streams[0].at_eof():
            self.close()
            self._sent = 0
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self._port, ssl=self._context, local_addr=(self._source, 0), ssl_handshake_timeout=30
            )
        return self._streams

    async def leave(self) -> None:
        """Hang up, and give the transport its turn to end."""
        self.close()
        await pause_async(0.05)

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = next((int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
    return int(head.split()[1]), await reader.readexactly(length)


def source_of(number: int) -> str:
    """An address to come from."""
    return f"127.{1 + number // 64_516 % 250}.{1 + number // 254 % 254}.{1 + number % 254}"


async def attack(port: int, requests: Sequence[Bad], *, addresses: int, at_once: int) -> Outcome:
    """Send all of `requests` from `addresses` addresses, `at_once` of them at work at any time."""
    outcome, context = Outcome(), stranger()
    shares = [requests[number::addresses] for number in range(addresses)]
    slots = asyncio.Semaphore(at_once)

    async def work(number: int, share: Sequence[Bad]) -> None:
        line = Line(port, source_of(number), context)
        async with slots:
            for bad in share:
                # An answer that needs half a connection is not waited for: the listener closes it in its own time.
                status, body = await line.ask(bad.data, ends=bad.ends)
                outcome.statuses[bad.kind, status] += 1
                if status == 200:
                    outcome.bodies.append(body)
            await line.leave()

    await asyncio.gather(*(work(number, share) for number, share in enumerate(shares)))
    return outcome
