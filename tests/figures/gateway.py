"""`/v1`: the benchmark's ratios, many streams for minutes, and real clients."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.bench.gateway import __main__ as bench
from tests.bench.gateway import peers, trust
from tests.figures import gateway_clients
from tests.figures.figure import Figure, exactly
from tests.waiting import pause

SOAK_SECONDS = float(os.environ.get("MIRBAD_FIGURE_SOAK_SECONDS", "300"))
SOAK_STREAMS = 200
_SLOPE_BYTES = 64 * 1024
"""Growth per minute that counts as none: the buffers of one stream."""


def measure() -> Iterator[Figure]:
    """Measure the figures of the gateway."""
    yield from _ratios()
    yield from _soak()
    yield _cancel()
    yield from gateway_clients.measure()


def _ratios() -> Iterator[Figure]:
    small, streams = bench.small_answers(tls=False), bench.event_streams(tls=False)
    for line in bench.tables(small, streams, title="plain"):
        print(line, flush=True)
    secure = bench.small_answers(tls=True)
    rates = {line.name: bench.median(line.requests[32]) for line in small.paths}
    own = rates.get("mirbad")
    for peer, goal in (("litellm", 100.0), ("caddy", 1.0), ("nginx", 0.25), ("envoy", 1.0)):
        other = rates.get(peer)
        if own is None or not other:
            yield Figure(f"requests per second against {peer}", "not measured", small.skipped.get(peer, ""), ok=False)
        else:
            yield Figure(
                f"requests per second against {peer}", f"{own / other:.2f}", f"at least {goal:g}", own / other >= goal
            )
    cpu = {line.name: bench.median(line.event_cpu[200]) for line in streams.paths}
    yield _ratio("CPU per event at 200 streams against nginx", cpu.get("mirbad"), cpu.get("nginx"), 2.0)
    both = {line.name: bench.median(line.cpu[32]) for line in small.paths}.get("mirbad (both hops)")
    first = {line.name: bench.median(line.cpu[32]) for line in secure.paths}.get("mirbad")
    yield _ratio("CPU of both hops against the first hop over mutual TLS", both, first, 2.5)
    p50 = {line.name: bench.median(line.p50[1]) for line in small.paths}
    straight, through = p50.get("straight"), p50.get("mirbad")
    if straight is not None and through is not None:
        added = through - straight
        yield Figure("added p50 at one connection", f"{added:.3f} ms", "under 0.5 ms", added < 0.5)
    own = small.own_seconds.get("mirbad")
    if own is not None:
        name = "own overhead of a request by mirbad_gateway_overhead_seconds"
        yield Figure(name, f"{own * 1000:.3f} ms", "under 0.5 ms", own < 0.0005)


def _ratio(name: str, one: float | None, other: float | None, goal: float) -> Figure:
    if one is None or not other:
        return Figure(name, "not measured", f"at most {goal:g}", ok=False)
    return Figure(name, f"{one / other:.2f}", f"at most {goal:g}", one / other <= goal)


def _soak() -> Iterator[Figure]:
    """Measure streams through both hops: no event lost or changed, and no growth of memory."""
    kept, bench.EVENTS = bench.EVENTS, int(SOAK_SECONDS * 1000 / bench.EVERY_MS)
    started = bench.Bench()
    try:
        engine = started.engine(small=False, tls=False)
        started.add_both_hops("mirbad (both hops)", engine)
        path = started.paths[0]
        command = [sys.executable, "-m", "tests.bench.gateway.listener", str(path.port), "/v1/chat/completions"]
        environ = {**os.environ, "MIRBAD_BENCH_LISTEN_SECONDS": str(SOAK_SECONDS * 2 + 60)}
        running = subprocess.Popen(
            [*command, trust.SECRET, str(SOAK_STREAMS)], stdout=subprocess.PIPE, cwd=peers.ROOT, env=environ
        )
        seen = _memory(path, running)
        found = json.loads(running.communicate()[0])
    finally:
        bench.EVENTS = kept
        started.close()
    for odd in found["odd"]:
        print(f"  a stream ended with: {odd}", flush=True)
    wanted = SOAK_STREAMS * int(SOAK_SECONDS * 1000 / bench.EVERY_MS)
    name = f"{SOAK_STREAMS} streams for {SOAK_SECONDS:.0f} s"
    yield exactly(f"{name}: events", found["events"], wanted)
    yield exactly(f"{name}: streams that arrived whole, by their hashes", found["same"], SOAK_STREAMS)
    slope = _slope(seen[len(seen) // 3 :]) * 60
    yield Figure(f"{name}: growth of memory", f"{slope / 1024:.0f} KiB a minute", "0", slope < _SLOPE_BYTES)


def _memory(path: "bench.BenchPath", running: "subprocess.Popen[bytes]") -> list[tuple[float, float]]:
    import psutil

    found: list[tuple[float, float]] = []
    while running.poll() is None:
        # Private memory only: the share of common memory changes as other processes start and end.
        total = sum(psutil.Process(process.pid).memory_full_info().uss for process in path.processes)
        found.append((time.monotonic(), float(total)))
        pause(min(5.0, SOAK_SECONDS / 10))
    return found


def _slope(points: list[tuple[float, float]]) -> float:
    """Return bytes per second, by least squares; the last points are left out because streams end then."""
    points = points[:-2] if len(points) > 4 else points
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0


def _cancel() -> Figure:
    """Measure the time from a client's disconnect, during a stream, until the engine notices: two hops away."""
    started = bench.Bench()
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            started.add_both_hops("mirbad (both hops)", listening.getsockname()[1])
            with socket.create_connection(("127.0.0.1", started.paths[0].port), timeout=10) as client:
                body = b'{"model":"m","stream":true,"messages":[]}'
                client.sendall(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (trust.SECRET.encode(), len(body), body)
                )
                engine, _ = listening.accept()
                engine.settimeout(10)
                engine.recv(65536)
                engine.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                    b"9\r\ndata: 1\n\n\r\n"
                )
                seen = b""
                while b"data: 1" not in seen:
                    seen += client.recv(65536)
            began = time.monotonic()
            while engine.recv(65536):
                pass
            took = time.monotonic() - began
            engine.close()
    finally:
        started.close()
    return Figure("cancel seen by the engine", f"{took:.3f} s", "within 1 s", took < 1)
