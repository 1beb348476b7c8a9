"""The cost of the telemetry of 1,000 nodes with 8 GPUs each to a master, on SQLite."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.simfleet.master import SimMaster
from tests.figures.figure import Figure, under

NODES, CARDS = 1000, 8


def measure() -> Iterator[Figure]:
    """One fleet in rows; nodes report every 5 seconds, so that a fifth of them is written each second."""
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        found = SimMaster(Path(folder)).python("-m", "tests.bench.telemetry", str(NODES), str(CARDS))
    same = found["few"] == found["many"]
    yield Figure("statements for 10 and for 250 nodes", f"{found['few']} and {found['many']}", "the same", same)
    yield under(f"a second's reports of {NODES} nodes with {CARDS} GPUs", found["round_ms"], 500, "ms of CPU")
    yield under("the slowest such second", found["round_worst_ms"], 1000, "ms of CPU")
    yield under(
        "averaging a minute of all of them", found["roll_up_ms"] / max(1, found["averaged"] / NODES), 5000, "ms"
    )
    yield under("a kept sample of one node", found["sample_bytes"], 2000, "bytes")
    yield under("the last word of all nodes", found["latest_ms"], 500, "ms of CPU")
    yield under("an hour of one node", found["history_ms"], 100, "ms of CPU")
    yield under("a page of the dashboard", found["dashboard_ms"], 500, "ms of CPU")
    yield under("a scrape of the metrics of all nodes", found["metrics_ms"], 2000, "ms of CPU")
