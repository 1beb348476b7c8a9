"""``kill -9`` of each process during a launch: how many engines were started, how the operation ended."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.e2e.fleet import EngineWatch, Fleet
from tests.figures.figure import Figure
from tests.waiting import pause, until

VICTIMS = ("agent", "worker", "watcher", "broker", "web")


def measure() -> Iterator[Figure]:
    """One line a victim, then all of them during one launch."""
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        fleet = Fleet(Path(folder))
        try:
            fleet.start()
            for victim in VICTIMS:
                yield _launch(fleet, f"kill -9 of {victim} during a launch", (victim,), 4)
            yield _launch(fleet, "kill -9 of all five one after another", VICTIMS, 12)
        finally:
            fleet.close()


def _launch(fleet: Fleet, name: str, victims: tuple[str, ...], start_seconds: int) -> Figure:
    model = f"m-{'-'.join(victims)}"[:60]
    fleet.define_sim(model, "local", "--start-seconds", str(start_seconds))
    with EngineWatch(fleet, model) as watch:
        begin = time.monotonic()
        asked = fleet.api("POST", f"models/{model}/start")
        for victim in victims:
            pause(1.0)
            os.kill(fleet.pid(victim), signal.SIGKILL)
        fleet.wait_for_answer(model, 120)
        served = time.monotonic() - begin
        pause(2)
    until(fleet.request_is_ready, seconds=60, what="readiness")
    done = until(
        lambda: (row := fleet.api("GET", f"operations/{asked['id']}"))["outcome"] != "open" and row,
        seconds=60,
        what="the operation",
    )
    fleet.api("POST", f"models/{model}/stop")
    value = f"{done['outcome']} once; {len(watch.seen)} engine started; serving after {served:.1f} s"
    return Figure(name, value, "succeeded once; 1 engine", done["outcome"] == "succeeded" and len(watch.seen) == 1)
