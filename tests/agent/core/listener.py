"""An enroll listener under a test's control: a real TLS server that answers as told, and remembers all it was sent."""

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from nodes.pki import certs
from tests.agent.core.fleet import UID, Fleet, Leaf, now


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    path: str
    body: dict[str, Any]


Answer = tuple[int, dict[str, Any] | bytes, dict[str, str]]


@dataclass
class EnrollServer:
    """Shows `leaf` with its CA. `answers` are used up one by one; None drops the connection; then it enrolls."""

    fleet: Fleet
    folder: Path
    leaf: Leaf | None = None
    answers: list[Answer | None] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    before_connection: Callable[["EnrollServer"], None] = lambda _: None
    uid: str = UID
    enroll_issuer: certs.Issuer | None = None

    def __post_init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.url = f"https://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)

    def enroll(self, body: dict[str, Any]) -> Answer:
        """Respond as a master does: only the public key of the request is used."""
        request = x509.load_pem_x509_csr(body["csrPem"].encode())
        key = request.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        cert = certs.issue_node(self.enroll_issuer or self.fleet.issuer, key, self.uid, now())
        return (
            200,
            {
                "nodeUid": self.uid,
                "chain": [certs.to_pem(cert)],
                "caBundle": [self.fleet.ca_pem],
                "masterSpki": {"current": self.fleet.master.spki, "next": None},
            },
            {},
        )

    def _run(self) -> None:
        while True:
            try:
                plain, _ = self._socket.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), plain:
                self._serve(plain)

    def _serve(self, plain: socket.socket) -> None:
        self.connections += 1
        self.before_connection(self)
        leaf = self.leaf or self.fleet.enroll_leaf()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        path = leaf.write(self.folder)
        path.write_bytes(path.read_bytes() + self.fleet.ca_pem.encode())
        context.load_cert_chain(path)
        plain.settimeout(10)
        with context.wrap_socket(plain, server_side=True) as tls:
            asked = _read(tls)
            if asked is None:
                return
            self.asked.append(asked)
            answer = self.answers.pop(0) if self.answers else self.enroll(asked.body)
            if answer is None:
                return
            status, value, headers = answer
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", "Connection: close"]
            lines += [f"{name}: {text}" for name, text in headers.items()]
            tls.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)


def _read(tls: ssl.SSLSocket) -> Asked | None:
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := tls.recv(65536)):
            return None
        data += more
    head, body = data.split(b"\r\n\r\n", 1)
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
    while len(body) < int(fields["Content-Length"]):
        body += tls.recv(65536)
    return Asked(head.decode().split(" ")[1], json.loads(body))


@contextlib.contextmanager
def enroll_server(fleet: Fleet, folder: Path) -> Iterator[EnrollServer]:
    server = EnrollServer(fleet, folder)
    try:
        yield server
    finally:
        server.close()
