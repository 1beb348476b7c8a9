"""A compressed life: node certificates of 30 seconds under traffic, and the fleet's CA rotated while they turn over.

``MIRBAD_TEST_LIFE_SECONDS`` (600) and ``MIRBAD_TEST_CA_SECONDS`` (180, 0 for never) make it shorter.
"""

import http.client
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.fleet import Failed, Fleet
from tests.figures.figure import Figure, exactly
from tests.waiting import pause

LEAF = "30s"
CALLERS = 3


class Traffic:
    """Callers that stream answers one after another; what failed is kept in words."""

    def __init__(self, fleet: Fleet, model: str) -> None:
        self._fleet, self._model = fleet, model
        self.answered = 0
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(CALLERS)]

    def start(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            try:
                words = self._fleet.chat(self._model, tokens=40)
                good = bool(words)
                why = "no words"
            except (Failed, OSError, AssertionError, http.client.HTTPException) as error:
                good, why = False, str(error)[:300]
            with self._lock:
                self.answered += good
                if not good:
                    self.failures.append(f"{time.strftime('%H:%M:%S')} {why}")


def measure() -> Iterator[Figure]:
    """One run."""
    seconds = float(os.environ.get("MIRBAD_TEST_LIFE_SECONDS", "600"))
    every = float(os.environ.get("MIRBAD_TEST_CA_SECONDS", "180"))
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        fleet = Fleet(Path(folder), MIRBAD_AGENT_CERTIFICATE_LIFE=LEAF)
        try:
            fleet.start()
            fleet.define_sim("life", "local", "--tokens-per-second", "60")
            fleet.api("POST", "models/life/start")
            fleet.wait_for_answer("life", 60)
            yield from _figures(fleet, seconds, every)
        finally:
            fleet.close()


def _figures(fleet: Fleet, seconds: float, every: float) -> Iterator[Figure]:
    traffic = Traffic(fleet, "life").start()
    began, rotated, keys, away = time.monotonic(), 0, set(), 0
    while (passed := time.monotonic() - began) < seconds:
        pause(1)
        node = fleet.api("GET", "nodes/local")
        keys.add(node["spkiSha256"])
        away += node["state"] not in ("Online", "Degraded")
        if every and passed > every * (rotated + 1) and passed < seconds - 60:
            rotated += 1
            fleet.api("POST", "pki/ca-rotation", {"action": "start"})
    traffic.end()
    renewals = _renewals(fleet)
    label = f"a life of {seconds:.0f} s with certificates of {LEAF}"
    failed = [row for row in renewals if row["outcome"] == "failed"]
    yield Figure(f"{label}: renewals", f"{len(renewals)}, keys seen {len(keys)}", "for reading", len(keys) > 1)
    yield exactly(f"{label}: renewals that failed", len(failed), 0)
    yield exactly(f"{label}: answers streamed {traffic.answered}, requests that failed", len(traffic.failures), 0)
    yield exactly(f"{label}: looks at which the node was away", away, 0)
    if every:
        told = (fleet.api("GET", "pki/ca-rotation")["rotation"] or {}).get("stage", "none")
        yield Figure(f"{label}: CA rotations begun", f"{rotated}, the last is {told}", "Closed", told == "Closed")
    for line in traffic.failures[:5]:
        yield Figure(f"{label}: a failure", line, "none", False)


def _renewals(fleet: Fleet) -> list[dict[str, Any]]:
    rows = fleet.api("GET", "operations?nodeId=local&limit=200")["items"]
    return [row for row in rows if row["kind"] == "rotate-cert"]
