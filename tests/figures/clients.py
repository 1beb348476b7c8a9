"""Real client programs before a whole master with a real engine: chat, stream, errors, idle connections, leaving.

Programs and libraries are installed by the names of their packages at the first run; what cannot be is told, and left
out. ``MIRBAD_TEST_CLIENT_IDLE=60,80`` are the pauses in seconds: within the keep-alive of the master, and beyond it.
"""

import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.gateway import peers
from tests.bench.gateway.peers import Missing
from tests.e2e.fleet import Fleet
from tests.figures.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("real_clients")
CACHE = ROOT / "tests" / ".cache" / "clients"
MODEL = "smollm2-135m"
IDLE = os.environ.get("MIRBAD_TEST_CLIENT_IDLE", "60,80")
DOORS = tuple(os.environ.get("MIRBAD_TEST_CLIENT_DOORS", "fast,asgi").split(","))
_START_SECONDS = 300.0
_RUN_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Place:
    """The address and key of the master, and a page of another origin."""

    url: str
    key: str
    page: str

    @property
    def words(self) -> tuple[str, ...]:
        """Return the arguments of every client."""
        return (self.url, self.key, MODEL, IDLE)


def _program(name: str, package: str) -> str:
    """Return a program of the system's packages; root installs it where it is missing. Raises Missing."""
    if (found := shutil.which(name)) is None and os.getuid() == 0 and shutil.which("apt-get") is not None:
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(install, env=environ, capture_output=True, timeout=600, check=False)
        found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed (Debian, Ubuntu: apt-get install {package})")
    return found


def _openai_python(place: Place) -> Sequence[str]:
    return (sys.executable, str(PROGRAMS / "sdk.py"), "openai", *place.words)


def _anthropic_python(place: Place) -> Sequence[str]:
    python = peers.wheel("anthropic==2.14.0", "python")
    return (str(python), str(PROGRAMS / "sdk.py"), "anthropic", *place.words)


def _node(library: str, package: str, place: Place) -> Sequence[str]:
    node, npm = _program("node", "nodejs"), _program("npm", "npm")
    home = CACHE / "node"
    if not (home / "node_modules" / package.rpartition("@")[0]).is_dir():
        home.mkdir(parents=True, exist_ok=True)
        install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(home), package]
        done = subprocess.run(install, cwd=home, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise Missing(f"{package} cannot be installed by npm: {done.stderr.strip()[-200:]}")
    shutil.copy(PROGRAMS / "sdk.mjs", home / "sdk.mjs")
    return (node, str(home / "sdk.mjs"), library, *place.words)


def _java(place: Place) -> Sequence[str]:
    _program("javac", "default-jdk-headless")
    return (_program("java", "default-jdk-headless"), str(PROGRAMS / "Client.java"), *place.words)


def _go(place: Place) -> Sequence[str]:
    go = _program("go", "golang-go")
    CACHE.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "GOCACHE": str(CACHE / "go"), "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    build = [go, "build", "-o", str(CACHE / "go-client"), str(PROGRAMS / "client.go")]
    done = subprocess.run(build, env=environ, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise Missing(f"the Go program cannot be built: {done.stderr.strip()[-200:]}")
    return (str(CACHE / "go-client"), *place.words)


def _browser(place: Place) -> Sequence[str]:
    chromium = _program("chromium", "chromium")
    return (sys.executable, "-m", "tests.figures.real_clients.browser", chromium, place.page, *place.words)


CLIENTS: dict[str, Callable[[Place], Sequence[str]]] = {
    "OpenAI, Python": _openai_python,
    "OpenAI, Node": functools.partial(_node, "openai", "openai@7.59.0"),
    "Anthropic, Python": _anthropic_python,
    "Anthropic, Node": functools.partial(_node, "anthropic", "@anthropic-ai/sdk@1.14.0"),
    "JDK HttpClient": _java,
    "Go net/http": _go,
    "Chromium, another origin": _browser,
}


def measure() -> Iterator[Figure]:
    """Yield one figure for each client and server of `/v1`, and print their cases as a table."""
    rows: dict[str, dict[str, str]] = {}
    for door in DOORS:
        with contextlib.ExitStack() as stack:
            try:
                place = _master(stack, door)
            except AssertionError as error:
                yield Figure(f"a master for the clients ({door})", str(error)[-300:], "serves", ok=False)
                continue
            for name, found in _outcomes(place).items():
                rows[f"{name} ({door})"] = found
                yield _figure(f"{name} ({door})", found)
    print(_table(rows), flush=True)


def _master(stack: contextlib.ExitStack, door: str) -> Place:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(PROGRAMS)))
    stack.callback(server.shutdown)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    origin = f"http://127.0.0.1:{server.server_address[1]}"
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mirbad-figure-")))
    fleet = Fleet(folder, starter=MODEL, MIRBAD_V1_DOOR=door, MIRBAD_V1_ORIGINS=origin)
    stack.callback(fleet.close)
    fleet.start(seconds=_START_SECONDS)
    fleet.wait_for_answer(MODEL, _START_SECONDS)
    return Place(fleet.url, fleet.key, f"{origin}/page.html")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that logs nothing."""

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  the base class names it so
        """Log nothing."""


def _outcomes(place: Place) -> dict[str, dict[str, str]]:
    """Run all clients at once, which mostly wait, and return their cases."""
    found: dict[str, dict[str, str]] = {}
    running: dict[str, subprocess.Popen[str]] = {}
    for name, command in CLIENTS.items():
        try:
            words = list(command(place))
        except (Missing, subprocess.SubprocessError) as error:
            found[name] = {"missing": str(error)}
            continue
        running[name] = subprocess.Popen(
            words, cwd=_folder_of(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    for name, process in running.items():
        try:
            out, err = process.communicate(timeout=_RUN_SECONDS)
            found[name] = json.loads(out.strip().splitlines()[-1])
        except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
            process.kill()
            found[name] = {"run": f"{type(error).__name__}: {err.strip()[-300:] if process.poll() else 'no end'}"}
    return {name: found[name] for name in CLIENTS}


def _folder_of(words: Sequence[str]) -> Path:
    script = Path(words[1])
    return script.parent if script.suffix == ".mjs" else ROOT


def _figure(name: str, found: dict[str, str]) -> Figure:
    if "missing" in found:
        return Figure(name, "left out", found["missing"], ok=True)
    wrong = {case: text for case, text in found.items() if text != "ok"}
    value = ", ".join(found) if not wrong else "; ".join(f"{case}: {text}" for case, text in wrong.items())
    return Figure(name, value, "all ok", ok=not wrong)


def _table(rows: dict[str, dict[str, str]]) -> str:
    cases = list(dict.fromkeys(case for found in rows.values() if "missing" not in found for case in found))
    lines = ["| Client | " + " | ".join(cases) + " |", "|---" * (len(cases) + 1) + "|"]
    for name, found in rows.items():
        cells = ("ok" if found.get(case) == "ok" else "-" if case not in found else "fails" for case in cases)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
