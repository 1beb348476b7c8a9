"""A Docker Engine's door without an engine: answers that real ones gave, one after another, on a unix socket."""

import json
import re
import socketserver
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import unquote

_VERSION = re.compile(r"^/v(\d+\.\d+)(/.*)$")


@dataclass(frozen=True)
class Answer:
    """One answer: JSON, or several JSON lines as a pull sends them, each after `pause` was called."""

    status: int = 200
    body: Any = None
    lines: Sequence[Any] | None = None
    pause: Callable[[], object] = lambda: None


@dataclass
class Seen:
    """One request that came."""

    method: str
    path: str
    version: str | None
    body: Any


@dataclass
class FakeDocker:
    """`answers` are by ``METHOD path`` without version and query; the last of a list stands. Use as a context manager.

    A request of a version below `minimum` is refused, as engines do since 29.
    """

    path: Path
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    api: str = "1.47"
    minimum: str = "1.24"
    seen: list[Seen] = field(default_factory=list)

    @property
    def host(self) -> str:
        """For ``docker_host``."""
        return f"unix://{self.path}"

    def paths(self) -> list[str]:
        """Return the requests so far, in order, without the negotiation."""
        return [f"{one.method} {one.path}" for one in self.seen if one.path != "/version"]

    def __enter__(self) -> Self:
        self._server = _Server(str(self.path), _Handler)
        self._server.fake = self
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, seen: Seen) -> Answer:
        """Return the answer to a request."""
        if seen.path == "/version":
            return Answer(body={"ApiVersion": self.api, "MinAPIVersion": self.minimum, "Version": "29.0.0"})
        if seen.version is not None and _number(seen.version) < _number(self.minimum):
            text = f"client version {seen.version} is too old. Minimum supported API version is {self.minimum}"
            return Answer(400, {"message": f"{text}, please upgrade your client to a newer version"})
        found = self.answers.get(f"{seen.method} {seen.path}", [Answer(404, {"message": "page not found"})])
        return found.pop(0) if len(found) > 1 else found[0]


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    fake: FakeDocker

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up in the middle is what some tests want."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        fake = cast("_Server", self.server).fake
        path = unquote(self.path.split("?", 1)[0])
        found = _VERSION.match(path)
        size = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(size)
        version, path = (found[1], found[2]) if found else (None, path)
        seen = Seen(self.command, path, version, json.loads(data) if data else None)
        fake.seen.append(seen)
        answer = fake.answer(seen)
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        if answer.lines is not None:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in answer.lines:
                answer.pause()
                data = json.dumps(line).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")
            return
        data = b"" if answer.body is None else json.dumps(answer.body).encode()
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - names that http.server looks for

    def log_message(self, *_: object) -> None:
        """Tests read what was asked, not a log."""

    def address_string(self) -> str:
        """A unix socket has no address."""
        return "unix"
