"""A master, its watcher and web process, and the agents that they see, some of which can be made silent."""

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.simfleet.master import Process, SimMaster
from tests.waiting import until

WORKED = frozenset({"Online", "Degraded"})
_PROCESSES = 4
_SILENT_SHARE = 10


class SimFleet:
    """`count` agents in a few processes. A tenth of them can go silent, half by hanging and half by being killed."""

    def __init__(self, master: SimMaster, count: int, agents: Path, *, processes: int = _PROCESSES) -> None:
        self.master, self.count = master, count
        master.make(count, max(1, count // 5), agents)
        half = max(1, count // _SILENT_SHARE // 2)
        self.silent = 2 * half
        members = list(master.members)
        self._killed_members = members[half : self.silent]
        rest = members[self.silent :]
        plans = {f"agents-{number}": rest[number::processes] for number in range(processes)}
        plans |= {"agents-hanging": members[:half], "agents-killed": self._killed_members}
        started = master.agents(plans)
        self._hanging, self._killed = started["agents-hanging"], started["agents-killed"]
        self.watcher: Process | None = None

    def watch(self) -> Process:
        """Start the watcher."""
        self.watcher = self.master.watcher()
        return self.watcher

    def items(self) -> list[dict[str, Any]]:
        """Every node, as the API tells it."""
        items: list[dict[str, Any]] = []
        while True:
            page = self.master.api(f"nodes?limit=1000&offset={len(items)}")
            items += page["items"]
            if page["next"] is None:
                return items

    def states(self) -> dict[str, int]:
        """Return the number of nodes in each state; Online and Degraded are ``worked``."""
        found: dict[str, int] = {}
        for item in self.items():
            state = "worked" if item["state"] in WORKED else str(item["state"])
            found[state] = found.get(state, 0) + 1
        return found

    def wait_for_all(self, seconds: float) -> None:
        """Wait until every node is online."""
        until(lambda: self.states().get("worked", 0) == self.count, "all nodes online", seconds, every=0.5)

    def fall_silent(self) -> None:
        """A tenth says nothing more: half hang with open connections, half are gone."""
        self._hanging.send(signal.SIGSTOP)
        self._killed.send(signal.SIGKILL)

    def come_back(self) -> None:
        """They are there again."""
        self._hanging.send(signal.SIGCONT)
        self.master.agents({"agents-killed-again": self._killed_members})

    def tracebacks(self) -> list[str]:
        """The last line of each that the master's own processes wrote."""
        texts = [(self.master.folder / name).read_text(errors="replace") for name in ("watcher.out", "web.out")]
        texts += [path.read_text(errors="replace") for path in (self.master.data / "logs").glob("*.log*")]
        found = [part for text in texts for part in text.split("Traceback (most recent call last):")[1:]]
        return [next((line for line in part.splitlines()[1:] if line[:1].strip()), "?")[:200] for part in found]


@contextlib.contextmanager
def agents_folder() -> Iterator[Path]:
    """A place for the agents' state: in memory where there is one, so that the master's disk is what is measured."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="mirbad-sim-", dir=memory if memory.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
