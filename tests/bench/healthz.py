"""Asks `/healthz` for ever, and tells the worst since the last look, with what it was spent on.

``python -m tests.bench.healthz PORT [PID]``: a line of stdin prints the worst. With the process id of the server, whose
event loop is its main thread, the kernel's accounts split the time of the worst: `ran` on a CPU, `waited` for a CPU
that others used, and the same wait of the client that asks.

``python -m tests.bench.healthz serve``: prints a port, and answers there with nothing else to do. Asked in the same
way, it shows what the machine makes of the simplest of servers at that time.
"""

import asyncio
import contextlib
import http.client
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

EVERY_SECONDS = 0.01
TIMEOUT_SECONDS = 120.0
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\nok\n"


class Account:
    """The kernel's account of one thread: seconds on a CPU, and seconds in which it waited for one."""

    def __init__(self, thread: str) -> None:
        self._file = os.open(f"/proc/{thread}/schedstat", os.O_RDONLY)

    def read(self) -> tuple[float, float]:
        """Return both since the thread began."""
        ran, waited, _ = os.pread(self._file, 100, 0).split()
        return int(ran) / 1e9, int(waited) / 1e9


@dataclass(frozen=True)
class Answer:
    """One response in milliseconds: `total`, what the server's loop ran and waited, and what the client waited."""

    total: float
    ran: float = 0.0
    waited: float = 0.0
    client_waited: float = 0.0


class Probe:
    """The times of responses since the last look."""

    def __init__(self, port: int, pid: int | None) -> None:
        self._port, self._pid = port, pid
        self._lock = threading.Lock()
        self._never = threading.Event()
        self._answers: list[Answer] = []
        self._began: float | None = None

    def run(self) -> None:
        """Ask for ever, on one connection while it lasts."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_SECONDS)
        server = Account(f"{self._pid}/task/{self._pid}") if self._pid else None
        own = Account(f"self/task/{threading.get_native_id()}")
        while True:
            before = server.read() if server else (0.0, 0.0), own.read()
            with self._lock:
                self._began = time.monotonic()
            try:
                connection.request("GET", "/healthz")
                answer = connection.getresponse()
                answer.read()
                good = answer.status == 200
            except (OSError, http.client.HTTPException):
                connection.close()
                good = False
            took = time.monotonic() - (self._began or 0.0)
            after = server.read() if server else (0.0, 0.0), own.read()
            (ran, waited), (_, client) = (
                (now[0] - then[0], now[1] - then[1]) for then, now in zip(before, after, strict=True)
            )
            found = Answer(took if good else TIMEOUT_SECONDS, ran, waited, client)
            with self._lock:
                self._began = None
                self._answers.append(found)
            self._never.wait(EVERY_SECONDS)

    def look(self) -> dict[str, float]:
        """Return the worst response with its parts and the median in milliseconds, one that still waits included."""
        with self._lock:
            answers, self._answers = self._answers or [Answer(0.0)], []
            if self._began is not None:
                answers.append(Answer(time.monotonic() - self._began))
        answers.sort(key=lambda answer: answer.total)
        worst, middle = answers[-1], answers[len(answers) // 2]
        return {
            "worst": worst.total * 1000,
            "ran": worst.ran * 1000,
            "waited": worst.waited * 1000,
            "client": worst.client_waited * 1000,
            "median": middle.total * 1000,
            "count": len(answers),
        }


async def _serve() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(_ANSWER)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main(words: list[str]) -> None:
    """Probe until stdin ends, or serve."""
    if words == ["serve"]:
        asyncio.run(_serve())
    pid = int(words[1]) if words[1:] and Path("/proc/self/schedstat").exists() else None
    probe = Probe(int(words[0]), pid)
    threading.Thread(target=probe.run, daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps(probe.look()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
