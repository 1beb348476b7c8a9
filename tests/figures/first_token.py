"""From a clean clone with an empty cache to the first streamed token, cold and warm, and the memory of it all."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from tests.bench.services import free_port
from tests.figures.figure import Figure, under
from tests.waiting import pause, until

ROOT = Path(__file__).resolve().parents[2]
TOKEN, LAST = "First token streamed", "Stop with Ctrl-C"
_SETTLE_SECONDS = 10


class Run:
    """`make up` in a clone, with the second of each of its lines."""

    def __init__(self, clone: Path, environ: dict[str, str]) -> None:
        self.begin = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        self.make = subprocess.Popen(
            ["make", "up"],
            cwd=clone,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.make.stdout is not None
        with self.make.stdout:
            for line in self.make.stdout:
                self.lines.append((time.monotonic() - self.begin, line.rstrip()))

    def seconds_to(self, words: str, limit: float) -> float:
        """Seconds until a line with `words`. RuntimeError with all lines when it does not come."""

        def found() -> list[float]:
            return [second for second, line in list(self.lines) if words in line]

        with suppress(AssertionError):
            until(lambda: found() or self.make.poll() is not None, words, limit - (time.monotonic() - self.begin))
        if seconds := found():
            return seconds[0]
        raise RuntimeError(f"no {words!r}:\n" + "\n".join(line for _, line in self.lines))

    def stop(self) -> float:
        """Ctrl-C, as a terminal gives it to the whole group; seconds until all has ended."""
        begin = time.monotonic()
        os.killpg(self.make.pid, signal.SIGINT)
        self.make.wait(90)
        self._reader.join(10)
        return time.monotonic() - begin


def memory_megabytes(make: int, data: Path) -> dict[str, float]:
    """PSS of every process of this run in MB, by kind. Engines are nobody's children: found by their folder."""
    family = psutil.Process(make).children(recursive=True)
    engines = [process for process in psutil.process_iter() if _works_in(process, data) and process not in family]
    found: dict[str, float] = {}
    for process in [*family, *engines]:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            kind = _kind(process.cmdline())
            found[kind] = found.get(kind, 0.0) + process.memory_full_info().pss / 1e6
    return found


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.cwd().startswith(str(folder))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _kind(words: list[str]) -> str:
    text = " ".join(words)
    kinds = {
        "llama_runner.py": "engine", "supervisord": "supervisord", "uvicorn": "web", "enroll_listener": "enroll",
        "manage.py watch": "watcher", " worker": "worker", " beat": "beat", "valkey-server": "broker",
        "redis-server": "broker", "-m agent": "agent", "mirbad.up": "up",
    }  # fmt: skip
    return next((kind for sign, kind in kinds.items() if sign in text), "other")


def measure() -> Iterator[Figure]:
    """Cold, warm, memory, stop."""
    folder = Path(tempfile.mkdtemp(prefix="mirbad-figure-"))
    clone, data = folder / "clone", folder / "clone" / "data"
    try:
        subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(clone)], check=True)
        environ = {name: text for name, text in os.environ.items() if not name.startswith(("MIRBAD_", "DATABASE_URL"))}
        for name in ("VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH"):
            environ.pop(name, None)
        environ["PIP_CACHE_DIR"] = str(folder / "cache")
        for name in ("MIRBAD_PORT", "MIRBAD_ENROLL_PORT", "MIRBAD_AGENT_PORT"):
            environ[name] = str(free_port())
        cold = Run(clone, environ)
        yield under("make up to first token, cold", cold.seconds_to(TOKEN, 600), 120, "s")
        cold.seconds_to(LAST, 600)
        yield under("Ctrl-C to the end of everything", cold.stop(), 20, "s")
        warm = Run(clone, environ)
        yield under("make up to first token, warm", warm.seconds_to(TOKEN, 120), 12, "s")
        warm.seconds_to(LAST, 120)
        pause(_SETTLE_SECONDS)
        memory = memory_megabytes(warm.make.pid, data)
        parts = ", ".join(f"{kind} {size:.0f}" for kind, size in sorted(memory.items(), key=lambda row: -row[1]))
        without = sum(size for kind, size in memory.items() if kind != "engine")
        print(f"# memory in MB (PSS): {parts}".replace(", ", " "), flush=True)
        yield under("memory of all processes without the engine", without, 700, "MB")
        warm.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
