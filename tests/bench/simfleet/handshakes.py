"""Callers that shake hands all the time, and what became of each try."""

import asyncio
import ssl
from dataclasses import dataclass, field

SECONDS = 20.0


@dataclass
class Handshakes:
    """Whole requests, each over a connection of its own: in TLS 1.3 a handshake alone proves nothing.

    A swap may end connections that were made with the former key; such a request is `cut`, not failed. `swaps` counts
    them: whoever swaps increments it first.
    """

    port: int
    context: ssl.SSLContext
    server_name: str
    request: bytes
    address: str = "127.0.0.1"
    swaps: int = 0
    good: int = 0
    cut: int = 0
    failed: list[str] = field(default_factory=list)
    keys: set[bytes] = field(default_factory=set)

    async def keep_on(self, ended: asyncio.Event) -> None:
        """One caller."""
        while not ended.is_set():
            swaps, shaken = self.swaps, False
            try:
                async with asyncio.timeout(SECONDS):
                    reader, writer = await asyncio.open_connection(
                        self.address, self.port, ssl=self.context, server_hostname=self.server_name
                    )
                    shaken = True
                    try:
                        self.keys.add(writer.get_extra_info("ssl_object").getpeercert(True))
                        writer.write(self.request)
                        answer = await reader.read()
                    finally:
                        writer.transport.abort()
                        await asyncio.sleep(0)
                if answer.startswith(b"HTTP/1.1 "):
                    self.good += 1
                    continue
                why = "no answer"
            except (OSError, ssl.SSLError, TimeoutError) as error:
                why = f"{type(error).__name__}: {error}"
            if shaken and self.swaps != swaps:
                self.cut += 1
            else:
                self.failed.append(why)
