"""The worst `/healthz` and the memory of the web process under bodies of every shape, slow clients and floods."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from functools import partial

from mirbad.kernel.files import allow_many
from tests.bench.webprocess import MEGABYTE, Web, during
from tests.figures.figure import Figure

SIZES = tuple(int(size) for size in os.environ.get("MIRBAD_TEST_FLOOD_MB", "10,60").split(","))
SLOW_BODIES, IDLE_SOCKETS, REFUSED = 600, 2000, 500
_SLOW_SECONDS = 5.0
_NEVER = threading.Event()


def _filled(size: int, piece: bytes, start: bytes, end: bytes) -> bytes:
    return start + piece * ((size - len(start) - len(end)) // len(piece)) + end


def shapes(size: int) -> dict[str, bytes]:
    """Return one body of `size` bytes for each shape."""
    return {
        "names": _filled(size, b'"k":1,', b"{", b'"model":"m"}'),
        "names in an object": _filled(size, b'"k":1,', b'{"a":{', b'"z":1},"model":"m"}'),
        "arrays": _filled(size, b"[],", b'{"a":[', b'[]],"model":"m"}'),
        "deep arrays": _filled(size, b"[" * 150 + b"]" * 150 + b",", b'{"a":[', b'[]],"model":"m"}'),
        "open arrays": _filled(size, b"[", b'{"model":"m","a":', b""),
        "objects": _filled(size, b'{"":""},', b'{"a":[', b'{}],"model":"m"}'),
        "numbers": _filled(size, b"1,", b'{"a":[', b'1],"model":"m"}'),
        "short strings": _filled(size, b'"",', b'{"a":[', b'""],"model":"m"}'),
        "one string": _filled(size, b"x", b'{"a":"', b'","model":"m"}'),
        "escapes": _filled(size, b'\\"', b'{"a":"', b'","model":"m"}'),
    }


def _bodies(web: Web) -> Iterator[Figure]:
    for size in SIZES:
        for shape, body in shapes(size * MEGABYTE).items():
            yield from during(web, f"{size} MB, {shape}", partial(web.status, body, web.key))
        part = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n'
        form = partial(web.status, _filled(size * MEGABYTE, part, b"", b"--b--\r\n"), web.key)
        path, kind = "/v1/audio/transcriptions", "multipart/form-data; boundary=b"
        yield from during(web, f"{size} MB, a form of small parts", partial(form, kind, path))


def _eight(web: Web) -> None:
    body = _filled(60 * MEGABYTE, b"x", b'{"a":"', b'","model":"m"}')
    threads = [threading.Thread(target=web.status, args=(body, web.key)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _slow(web: Web) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nContent-Length: 9999\r\n\r\n{"
    with contextlib.ExitStack() as stack:
        for _ in range(SLOW_BODIES):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", web.port), timeout=10))
            client.sendall(head % web.key.encode())
        _NEVER.wait(_SLOW_SECONDS)


def _idle(web: Web, addresses: int) -> None:
    """Open connections that say nothing, from one address or from several."""
    with contextlib.ExitStack() as stack:
        for number in range(IDLE_SOCKETS):
            own = (f"127.0.1.{number % addresses}", 0)
            to = ("127.0.0.1", web.port)
            stack.enter_context(socket.create_connection(to, timeout=10, source_address=own))
        _NEVER.wait(_SLOW_SECONDS)


def _refused(web: Web) -> None:
    body = b"x" * MEGABYTE

    def post() -> None:
        for _ in range(REFUSED // 10):
            web.status(body, "ssk_wrong")

    threads = [threading.Thread(target=post) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure() -> Iterator[Figure]:
    """Yield the worst `/healthz` under each flood."""
    allow_many()
    with contextlib.ExitStack() as stack:
        web = Web(stack)
        yield from during(web, "nothing, for 3 s", lambda: _NEVER.wait(3))
        yield from _bodies(web)
        yield from during(web, "eight bodies of 60 MB at a time", lambda: _eight(web))
        yield from during(web, f"{SLOW_BODIES} slow bodies", lambda: _slow(web))
        for addresses in (1, 10):
            name = f"{IDLE_SOCKETS} idle connections from {addresses} addresses"
            yield from during(web, name.replace("1 addresses", "one address"), partial(_idle, web, addresses))
        yield from during(web, f"{REFUSED} refused posts of 1 MB", lambda: _refused(web))
