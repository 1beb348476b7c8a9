"""`make bench-gateway`: this gateway and others, one after the other in many short rounds, on one machine.

The measured proxy runs on one core, engine and clients on the others. Each figure is the median of its rounds. CPU is
that of the proxy's processes alone, so it holds even when something else keeps the machine busy; requests per second
do not. ``MIRBAD_BENCH_ROUNDS``, ``MIRBAD_BENCH_SECONDS`` and ``MIRBAD_BENCH_PEERS`` (comma-separated) shorten a run.
"""

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.bench.gateway import peers, trust
from tests.bench.gateway.peers import Missing, Place
from tests.bench.services import free_port
from tests.waiting import until

ROUNDS = int(os.environ.get("MIRBAD_BENCH_ROUNDS", "5"))
SECONDS = int(os.environ.get("MIRBAD_BENCH_SECONDS", "1"))
WANTED = set(filter(None, os.environ.get("MIRBAD_BENCH_PEERS", "").split(",")))
CONNECTIONS = (1, 32, 128)
STREAMS = (1, 50, 200)
EVENTS, EVERY_MS = 40, 50.0
_START_SECONDS = 60
_SLOW = {"litellm"}
_PATH = "/v1/chat/completions"
_CORES = sorted(os.sched_getaffinity(0))


@dataclass
class BenchPath:
    """One path from client to engine."""

    name: str
    port: int
    processes: list["subprocess.Popen[bytes]"]
    requests: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    p50: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    event_cpu: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    broken: int = 0

    def cpu_seconds(self) -> float:
        """Return the CPU time of its processes and their children."""
        total = 0.0
        for running in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = psutil.Process(running.pid)
                for process in (parent, *parent.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        times = process.cpu_times()
                        total += times.user + times.system
        return total


class Bench:
    """The processes of one run: proxies, engines and their files. `close` ends them all."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mirbad-bench-")))
        self.folder.chmod(0o755)
        self.tls = trust.write(_made(self.folder / "tls"))
        self.proxy_core = _CORES[:1]
        self.other_cores = _CORES[1:] or _CORES
        self.skipped: dict[str, str] = {}
        self.own_seconds: dict[str, float] = {}
        self.paths: list[BenchPath] = []

    def close(self) -> None:
        """End every process, then remove the folder."""
        self._stack.close()

    def run(self, command: Sequence[str], port: int, cores: list[int], name: str) -> "subprocess.Popen[bytes]":
        """Start a process on some cores and wait until it listens. Raises Missing when it ends or stays silent."""
        environ = {
            **{n: v for n, v in os.environ.items() if not n.startswith("MIRBAD_")},
            "MIRBAD_DATA": str(self.folder / "data"),
            "MIRBAD_SECRET_KEY": "x" * 64,
            "DISABLE_ADMIN_UI": "True",
            # LiteLLM serves without a master key only with this set
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        }
        log = (self.folder / f"{name}.log").open("wb")
        running = subprocess.Popen(
            command, stdout=log, stderr=log, env=environ, cwd=peers.ROOT,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )  # fmt: skip
        self._stack.callback(_end, running)
        with contextlib.suppress(AssertionError):
            until(lambda: _listens(port) or running.poll() is not None, name, _START_SECONDS, every=0.1)
        if running.poll() is None and _listens(port):
            return running
        _end(running)
        raise Missing(f"{name} does not start: {(self.folder / f'{name}.log').read_text()[-400:].strip()}")

    def engine(self, *, small: bool, tls: bool) -> int:
        """Start an engine on the other cores and return its port: nginx for small answers if installed, else ours."""
        port = free_port()
        name = f"engine-{'small' if small else 'streams'}{'-tls' if tls else ''}"
        folder = self.tls if tls else None
        if small:
            with contextlib.suppress(Missing):
                place = Place(port, 0, _made(self.folder / name), folder)
                self.run(peers.nginx_engine(place), port, self.other_cores, name)
                return port
        command = [sys.executable, "-m", "tests.bench.gateway.engine", str(port), str(EVENTS), str(EVERY_MS)]
        self.run([*command, *([str(folder)] if folder else [])], port, self.other_cores, name)
        return port

    def add(self, name: str, upstream: int, make: Callable[[Place], Sequence[str]], *, tls: bool = False) -> None:
        """Start one path, or record why it is skipped."""
        peer = name.split(" ", maxsplit=1)[0]
        if WANTED and peer not in WANTED:
            return
        port = free_port()
        try:
            place = Place(port, upstream, _made(self.folder / f"{peer}-{port}"), self.tls if tls else None)
            self.paths.append(BenchPath(name, port, [self.run(make(place), port, self.proxy_core, f"{peer}-{port}")]))
        except Missing as error:
            self.skipped[name] = str(error)

    def add_both_hops(self, name: str, engine: int) -> None:
        """Start the path through both hops: gateway, mutual TLS, the agent's relay, the engine."""
        if WANTED and "mirbad" not in WANTED:
            return
        middle = free_port()
        try:
            second = self.run(
                peers.relay(Place(middle, engine, self.folder, self.tls)), middle, self.proxy_core, f"relay-{middle}"
            )
            self.add(name, middle, peers.fast, tls=True)
            self.paths[-1].processes.append(second)
        except Missing as error:
            self.skipped[name] = str(error)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)  # nginx's worker is another user
    return folder


def _end(running: "subprocess.Popen[bytes]") -> None:
    if running.poll() is None:
        running.terminate()
        try:
            running.wait(timeout=5)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _listens(port: int) -> bool:
    import socket

    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5):
        return True
    return False


_WRK = """wrk.method = "POST"
wrk.body = '{"model": "m", "messages": [{"role": "user", "content": "Say something."}]}'
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer %s"
"""


def _small(bench: Bench, path: BenchPath, connections: int, seconds: int) -> None:
    script = bench.folder / "wrk.lua"
    script.write_text(_WRK % trust.SECRET)
    before = path.cpu_seconds()
    cores = ",".join(map(str, bench.other_cores))
    command = ["taskset", "-c", cores, peers.system("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
    url = f"http://127.0.0.1:{path.port}{_PATH}"
    out = subprocess.run([*command, "-s", script, url], capture_output=True, text=True, check=True).stdout
    used = path.cpu_seconds() - before
    count = int(_found(r"(\d+) requests in", out))
    path.broken += "Non-2xx" in out
    path.requests[connections].append(float(_found(r"Requests/sec:\s+([\d.]+)", out)))
    if count:
        path.cpu[connections].append(used / count * 1e6)
    value, unit = re.search(r"50%\s+([\d.]+)(us|ms|s)", out).groups()  # type: ignore[union-attr]
    path.p50[connections].append(float(value) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[unit])


def _streams(path: BenchPath, streams: int, bench: Bench) -> None:
    before = path.cpu_seconds()
    command = [sys.executable, "-m", "tests.bench.gateway.listener"]
    cores = ",".join(map(str, bench.other_cores))
    out = subprocess.run(
        ["taskset", "-c", cores, *command, str(path.port), _PATH, trust.SECRET, str(streams)],
        capture_output=True, text=True, check=True, cwd=peers.ROOT,
    ).stdout  # fmt: skip
    found = json.loads(out)
    if found["same"] != streams or found["events"] != streams * EVENTS:
        path.broken += 1
    if found["events"]:
        path.event_cpu[streams].append((path.cpu_seconds() - before) / found["events"] * 1e6)


def _own_seconds(path: BenchPath) -> float:
    """Return the mean overhead that the gateway reports: the time of a request less its waiting."""
    with urllib.request.urlopen(f"http://127.0.0.1:{path.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    name = "mirbad_gateway_overhead_seconds"
    total, count = (_found(rf'{name}_{kind}{{model="m"}} (\S+)', text) for kind in ("sum", "count"))
    return float(total) / float(count)


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"no {pattern} in {text}")
    return match.group(1)


def small_answers(tls: bool) -> Bench:
    """Measure small answers. Return the bench, closed, with its figures."""
    bench = Bench()
    try:
        engine = bench.engine(small=True, tls=tls)
        if not tls:
            bench.paths.append(BenchPath("straight", engine, []))
        bench.add("nginx", engine, peers.nginx, tls=tls)
        bench.add("caddy", engine, peers.caddy, tls=tls)
        bench.add("envoy", engine, peers.envoy, tls=tls)
        bench.add("mirbad", engine, peers.fast, tls=tls)
        if not tls:
            bench.add("mirbad (asgi)", engine, peers.asgi)
            bench.add_both_hops("mirbad (both hops)", engine)
            bench.add("litellm", engine, peers.litellm)
        for path in bench.paths:
            with contextlib.suppress(subprocess.CalledProcessError):
                _small(bench, path, 4, 1)  # warm
            for figures in (path.requests, path.cpu, path.p50):
                figures.clear()
            path.broken = 0
        for number in range(ROUNDS):
            for connections in CONNECTIONS:
                for path in bench.paths:
                    if path.name in _SLOW and (number or connections == CONNECTIONS[-1]):
                        continue  # it is so slow that one long round is enough
                    _small(bench, path, connections, 10 * SECONDS if path.name in _SLOW else SECONDS)
        for path in bench.paths:
            if path.name.startswith("mirbad"):
                bench.own_seconds[path.name] = _own_seconds(path)
    finally:
        bench.close()
    return bench


def event_streams(tls: bool) -> Bench:
    """Measure streams. Return the bench, closed, with its figures."""
    bench = Bench()
    try:
        engine = bench.engine(small=False, tls=tls)
        bench.add("nginx", engine, peers.nginx, tls=tls)
        bench.add("caddy", engine, peers.caddy, tls=tls)
        bench.add("envoy", engine, peers.envoy, tls=tls)
        bench.add("mirbad", engine, peers.fast, tls=tls)
        if not tls:
            bench.add("mirbad (asgi)", engine, peers.asgi)
            bench.add_both_hops("mirbad (both hops)", engine)
            bench.add("litellm", engine, peers.litellm)
        for path in bench.paths:
            _streams(path, 2, bench)
            path.event_cpu.clear()
            path.broken = 0
        for number in range(min(2, ROUNDS)):
            for streams in STREAMS:
                for path in bench.paths:
                    if path.name in _SLOW and (number or streams == STREAMS[-1]):
                        continue
                    _streams(path, streams, bench)
    finally:
        bench.close()
    return bench


def median(values: Sequence[float]) -> float | None:
    """Return the median, None without values."""
    return statistics.median(values) if values else None


def _cell(value: float | None, width: int = 9, digits: int = 0) -> str:
    return f"{'-' if value is None else f'{value:,.{digits}f}':>{width}}"


def tables(small: Bench, streams: Bench, *, title: str) -> Iterator[str]:
    """Return the figures as lines of text."""
    yield f"{title}: small answers" + " " * 10 + "requests/s at 1, 32, 128 | CPU us/request at 32 | p50 ms at 1"
    for path in small.paths:
        rates = "".join(_cell(median(path.requests[n])) for n in CONNECTIONS)
        notes = "  answers were wrong" if path.broken else ""
        yield (
            f"  {path.name:<20}{rates} |{_cell(median(path.cpu[32]) if path.processes else None)}"
            f" |{_cell(median(path.p50[1]), digits=3)}{notes}"
        )
    yield f"{title}: CPU us/event at {', '.join(map(str, STREAMS))} streams"
    for path in streams.paths:
        cells = "".join(_cell(median(path.event_cpu[n])) for n in STREAMS)
        yield f"  {path.name:<20}{cells}" + ("  events were lost" if path.broken else "")
    for name, why in {**small.skipped, **streams.skipped}.items():
        yield f"  {name} skipped: {why}"


def main() -> int:
    """Measure all and print the tables."""
    began = time.monotonic()
    print(f"load before the run: {os.getloadavg()[0]:.1f} on {len(_CORES)} cores", flush=True)
    for tls in (False, True):
        small, streams = small_answers(tls), event_streams(tls)
        for line in tables(small, streams, title="mutual TLS to the engine" if tls else "plain"):
            print(line, flush=True)
    print(f"load after the run: {os.getloadavg()[0]:.1f}; duration {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
