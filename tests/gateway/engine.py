"""A small engine with every byte decided by a test: raw HTTP on a loopback port, one script per request."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass
class Seen:
    """One request as the engine saw it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    left: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0
    writer: asyncio.StreamWriter | None = None

    @property
    def json(self):
        return json.loads(self.body)

    async def write(self, data: bytes) -> None:
        assert self.writer is not None
        self.writer.write(data)
        await self.writer.drain()
        self.sent += len(data)

    async def head(self, *lines: str, status: str = "200 OK") -> None:
        await self.write("\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.write(b"0\r\n\r\n")

    async def answer(self, data: bytes, *lines: str, status: str = "200 OK") -> None:
        head = lines or ("Content-Type: application/json",)
        await self.head(*head, f"Content-Length: {len(data)}", status=status)
        await self.write(data)

    async def events(self, *pieces: bytes) -> None:
        await self.head("Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        for piece in pieces:
            await self.chunk(piece)
        await self.end()


Script = Callable[[Seen], Awaitable[None]]


class EndingReader(asyncio.StreamReader):
    """A stream that sets `ended` as soon as its peer has closed it, before the bytes in it are read."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.ended.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.ended.set()


async def hello(seen: Seen) -> None:
    await seen.answer(json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}).encode())


class Engine:
    """An engine that runs `script` for each request and keeps the requests in `seen`; connections stay open."""

    def __init__(self) -> None:
        self.script: Script = hello
        self.seen: list[Seen] = []
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: asyncio.StreamReaderProtocol(EndingReader(), self._serve), "127.0.0.1", 0
        )

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (seen := await self._read(reader)) is not None:
                seen.writer = writer
                self.seen.append(seen)
                watch = asyncio.create_task(self._watch(reader, seen))
                try:
                    await self.script(seen)
                except ConnectionError:
                    seen.left.set()
                if writer.is_closing():
                    return
                await asyncio.sleep(0)
                if not watch.done():
                    watch.cancel()
                    await asyncio.gather(watch, return_exceptions=True)
                elif seen.left.is_set():
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _watch(self, reader: asyncio.StreamReader, seen: Seen) -> None:
        assert isinstance(reader, EndingReader)
        await reader.ended.wait()
        seen.left.set()

    async def _read(self, reader: asyncio.StreamReader) -> Seen | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines if line)}
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readexactly(2)
        else:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Seen(method, path, headers, body)
