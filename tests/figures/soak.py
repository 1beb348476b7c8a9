"""An hour of everything at once: a master on SQLite as `make up` runs it, its own agent, and people who use both.

``MIRBAD_TEST_SOAK_MINUTES`` is its length. Counts locked databases and answers that nobody expects, and fits the memory
and the open files of each process over time. Ctrl-C ends it early and shows what there is.
"""

import os
import re
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.bench.hub import Hub
from tests.e2e.fleet import Fleet
from tests.figures.figure import Figure, exactly
from tests.figures.soak_load import PASSWORD, STEADY, People, Tally
from tests.figures.trend import trend
from tests.waiting import until

MINUTES = float(os.environ.get("MIRBAD_TEST_SOAK_MINUTES", "60"))
_LOOK_SECONDS = 10.0
_TELL_LOOKS = 30
_WARM_UP = 0.25
_MIB = 1024 * 1024
# A trend below is not told from the heap's own moves within an hour.
MOST_MIB_AN_HOUR, MOST_FILES_AN_HOUR = 2.0, 1.0


@dataclass
class Seen:
    """The looks at one process: seconds with memory and with open files, and the process ids that it had."""

    memory: list[tuple[float, float]] = field(default_factory=list)
    files: list[tuple[float, float]] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


class Watch:
    """Looks at every process of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.seen: dict[str, Seen] = defaultdict(Seen)
        self._began = time.monotonic()
        self._looks = 0

    def _processes(self) -> dict[str, int]:
        found = {name: state.pid for name, state in self._fleet.processes().items() if state.pid}
        found |= {f"engine of {STEADY}": pid for pid in self._fleet.engines(STEADY)}
        assert self._fleet.up is not None
        return found | {"up": self._fleet.up.pid}

    def look(self) -> None:
        """Take one look at each process; every now and then print their memory."""
        second = time.monotonic() - self._began
        for name, pid in self._processes().items():
            with suppress(psutil.NoSuchProcess):
                process, seen = psutil.Process(pid), self.seen[name]
                seen.memory.append((second, process.memory_info().rss / _MIB))
                seen.files.append((second, float(process.num_fds())))
                seen.cpu.append(sum(process.cpu_times()[:2]))
                if pid not in seen.pids:
                    seen.pids.append(pid)
        if self._looks % _TELL_LOOKS == 0:
            told = " ".join(f"{name} {seen.memory[-1][1]:.1f}" for name, seen in self.seen.items())
            print(f"# minute {second / 60:.0f}: MiB: {told}", flush=True)
        self._looks += 1

    @property
    def seconds(self) -> float:
        """The time since the first look."""
        return time.monotonic() - self._began


def measure() -> Iterator[Figure]:
    """One master, one agent, one hub."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mirbad-figure-")))
        hub = stack.enter_context(Hub())
        fleet = Fleet(folder, HF_ENDPOINT=hub.endpoint, MIRBAD_ADMIN_PASSWORD=PASSWORD)
        stack.callback(fleet.close)
        fleet.start(seconds=300)
        people = People(fleet, hub)
        people.set_up()
        watch, over = Watch(fleet), threading.Event()
        threads = people.start(over)
        with suppress(KeyboardInterrupt):
            while watch.seconds < MINUTES * 60:
                watch.look()
                over.wait(_LOOK_SECONDS)
        over.set()
        for thread in threads:
            thread.join(120)
        yield Figure("soak", f"{watch.seconds / 60:.0f} min", f"{MINUTES:.0f} min", watch.seconds >= MINUTES * 60)
        yield from _answers(people.tally)
        yield from _processes(watch)
        yield from _left_behind(fleet)


def _answers(tally: Tally) -> Iterator[Figure]:
    for name, (number, worst) in sorted(tally.expected.items()):
        yield Figure(f"soak: {name}", f"{number} as expected; slowest {worst * 1000:.0f} ms", "for reading", ok=True)
    yield exactly("soak: answers that nobody expects", tally.unexpected.total(), 0)
    for (name, answer), number in tally.unexpected.most_common():
        yield Figure(f"soak: {name}", f"{number} times {answer}".replace(", ", "; "), "0 times", ok=False)


def _processes(watch: Watch) -> Iterator[Figure]:
    for name, seen in sorted(watch.seen.items()):
        warm = [index for index, (second, _) in enumerate(seen.memory) if second >= watch.seconds * _WARM_UP]
        if len(warm) < 10:
            yield Figure(f"soak: {name}", f"{len(seen.memory)} looks", "enough looks for a trend", ok=False)
            continue
        memory, files = seen.memory[warm[0] :], seen.files[warm[0] :]
        grows, opens = trend(memory), trend(files)
        value = f"{memory[0][1]:.1f} → {memory[-1][1]:.1f} MiB; {grows.words('MiB')}"
        goal = f"no growth over {MOST_MIB_AN_HOUR:.0f} MiB/h shown"
        yield Figure(f"soak: memory of {name}", value, goal, grows.at_least < MOST_MIB_AN_HOUR)
        value = f"{files[0][1]:.0f} → {files[-1][1]:.0f}; {opens.words('')}"
        goal = f"no growth over {MOST_FILES_AN_HOUR:.0f} an hour shown"
        yield Figure(f"soak: open files of {name}", value, goal, opens.at_least < MOST_FILES_AN_HOUR)
        yield exactly(f"soak: {name} started again", len(seen.pids) - 1, 0)
    cpu = {name: (seen.cpu[-1] - seen.cpu[0]) / watch.seconds * 100 for name, seen in watch.seen.items()}
    parts = "; ".join(f"{name} {share:.1f}" for name, share in sorted(cpu.items(), key=lambda row: -row[1]))
    yield Figure("soak: % of a core", f"{sum(cpu.values()):.1f} ({parts})", "for reading", ok=True)


def _left_behind(fleet: Fleet) -> Iterator[Figure]:
    files = [*fleet.data.glob("logs/*.out*"), *fleet.data.glob("logs/*.log*")]
    text = "\n".join(path.read_text(errors="replace") for path in files)
    yield exactly("soak: database is locked", text.lower().count("database is locked"), 0)
    faults = Counter(re.findall(r"^(\w+(?:\.\w+)*(?:Error|Exception)\b)", text, re.MULTILINE))
    words = "; ".join(f"{number} {name}" for name, number in faults.most_common()) or "none"
    yield exactly("soak: tracebacks in the logs", f"{text.count('Traceback (most recent')} ({words})", "0 (none)")
    until(lambda: not _open_operations(fleet), "the last operations to end", 60, every=1.0)
    yield exactly("soak: operations still open", _open_operations(fleet), 0)
    yield exactly("soak: audit_verify", fleet.manage("audit_verify", check=False).returncode, 0)
    sizes = {path.name: path.stat().st_size / _MIB for path in fleet.data.glob("mirbad.sqlite3*")}
    value = "; ".join(f"{name} {size:.1f} MiB" for name, size in sorted(sizes.items()))
    yield Figure("soak: database at the end", value, "for reading", ok=True)


def _open_operations(fleet: Fleet) -> int:
    code = "import json; from jobs.queries import unfinished; print(json.dumps(len(list(unfinished()))))"
    return int(fleet.inside(code))
