"""Every kind of operation, with its worker killed, stalled, unheard, or asked to end at every point that it comes to.

Here a sample of the points; ``make figures ONLY=operations-kills`` takes them all (`MIRBAD_TEST_KILLS=1`).
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import worker
from jobs.kinds import rotate_cert
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.requests import cancellation
from mirbad.kernel import clock
from mirbad.kernel.errors import MirbadError
from nodes.errors import NodeOffline
from nodes.pki import authority
from tests.jobs.kills.bench import Bench, Killed, Points
from tests.jobs.kills.scenarios import SCENARIOS, Scenario
from tests.models_app.things import PERSON
from tests.trust.ca_fleet import moving_clock

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

WHOLE = bool(os.environ.get("MIRBAD_TEST_KILLS"))
REPORT = os.environ.get("MIRBAD_TEST_KILLS_REPORT", "")
FAULTS = ("killed", "stalled", "answer lost", "delivered twice", "asked to end", "rebooted")
SAMPLE = 1
"""Points of each fault and kind outside of the figure."""

MOST = {"killed": 100}
"""Points of each fault and kind in the figure, spread over all that there are; `OTHERS` of the other faults."""

OTHERS = 10
QUICK = ("killed", "asked to end")
"""Faults that the longest kind is put through outside of the figure."""


@pytest.fixture
def bench(transactional_db, tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(rotate_cert, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(rotate_cert, "_AWAY_SECONDS", 0.1)
    now, forward = moving_clock()
    monkeypatch.setattr(clock, "now", now)
    authority.ensure()
    made = Bench(tmp_path, forward)
    yield made
    made.close()


class Run:
    """One scenario with one fault at one point."""

    def __init__(self, bench: Bench, points: Points, scenario: Scenario) -> None:
        self.bench, self.points, self.scenario = bench, points, scenario
        self.operation_id = ""
        self.came_to: list[str] = []

    def go(self, fault: str = "", at: int | None = None) -> list[str]:
        """Run the scenario; return the deviations at the end."""
        self.points.reset(None, lambda _: None)
        self.bench.wipe()
        self.scenario.prepare(self.bench)
        self.bench.look()
        for machine in self.bench.machines:
            machine.engines.launches.clear()
            machine.engines.stops.clear()
        self.operation_id = self.scenario.ask(self.bench).pk
        self.points.reset(at, getattr(self, f"_{fault.replace(' ', '_')}") if fault else lambda _: None)
        self._to_the_end()
        self.came_to = self.points.met
        self.points.reset(None, lambda _: None)
        self.bench.settle()
        return self._wrongs(fault)

    def _to_the_end(self) -> None:
        for _ in range(120):
            if not unfinished().filter(pk=self.operation_id).exists():
                return
            try:
                self.bench.turn()
            except Killed:
                self.bench.pass_lease()
        raise AssertionError(f"never over: {Operation.objects.values().get(pk=self.operation_id)}")

    def _wrongs(self, fault: str) -> list[str]:
        row = Operation.objects.get(pk=self.operation_id)
        told = self.bench.wrongs() + self.scenario.check(self.bench, row.outcome)
        allowed = {"succeeded", "cancelled"} if fault == "asked to end" else {"succeeded"}
        if fault == "rebooted":
            allowed = {"succeeded", "failed", "cancelled"}
        if row.outcome not in allowed:
            told.append(f"it ended {row.outcome}: {row.error}")
        if fault not in ("asked to end", "rebooted"):
            done = (self.bench.launches, self.bench.stops)
            if done != (self.scenario.launches, self.scenario.stops):
                told.append(f"{done[0]} launches and {done[1]} stops were carried out")
        return told

    # -- what happens at the point -------------------------------------------------------------------------------------

    def _killed(self, name: str) -> None:
        raise Killed(name)

    def _stalled(self, _: str) -> None:
        """SIGSTOP past the lease: another worker does it all, and then this one goes on."""
        self.bench.pass_lease()
        self.bench.finish(self.operation_id)

    def _answer_lost(self, name: str) -> None:
        if name != "after a call":
            # A run that looks at a download more often than the one before is elsewhere here: the next call it is.
            self.points.armed = len(self.points.met)
            return
        raise NodeOffline("No answer came in time.")

    def _delivered_twice(self, _: str) -> None:
        assert worker.run(self.points.at_work) == 0, "two workers at one step"

    def _asked_to_end(self, _: str) -> None:
        try:
            cancellation.request(self.operation_id, PERSON)
        except MirbadError:
            return  # there is no way back any more, or it is over

    def _rebooted(self, _: str) -> None:
        self.bench.reboot()


def places(points: list[str], fault: str) -> list[int]:
    """At which of the points a fault can fall."""
    in_reach = {
        "killed": lambda name: True,
        "stalled": lambda name: name not in ("in the write", "after the write"),
        "answer lost": lambda name: name == "after a call",
        "delivered twice": lambda name: name not in ("in the write", "after the write"),
        "asked to end": lambda name: name in ("claimed", "before a call", "after the effect"),
        "rebooted": lambda name: name in ("claimed", "before a call", "after a call", "after the effect"),
    }[fault]
    return [number for number, name in enumerate(points) if in_reach(name)]


def sampled(found: list[int], fault: str) -> list[int]:
    """Those of `found` that are tried: spread evenly."""
    most = MOST.get(fault, OTHERS) if WHOLE else SAMPLE
    if len(found) <= most:
        return found
    return [found[len(found) * (2 * part + 1) // (2 * most)] for part in range(most)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
def test_nothing_is_lost_and_nothing_runs_twice(bench, scenario) -> None:
    wrong: list[str] = []
    with Points().installed() as points:
        table = _scenario(Run(bench, points, scenario), wrong)
    if REPORT:
        Path(REPORT).write_text(json.dumps({"table": table, "wrong": wrong[:50]}))
    assert wrong == []


def _scenario(run: Run, wrong: list[str]) -> dict[str, dict[str, int]]:
    assert run.go() == [], run.scenario.name
    undisturbed = run.came_to
    row: dict[str, dict[str, int]] = {}
    for fault in FAULTS:
        if fault == "rebooted" and not run.scenario.engines:
            continue
        if not WHOLE and run.scenario.name == "evacuate" and fault not in QUICK:
            continue
        counted = {"points": 0, "lost": 0, "wrong": 0}
        for at in sampled(places(undisturbed, fault), fault):
            counted["points"] += 1
            _one(run, fault, at, counted, wrong)
        row[fault] = counted
    return row


def _one(run: Run, fault: str, at: int, counted: dict[str, int], wrong: list[str]) -> None:
    try:
        found = run.go(fault, at)
    except (AssertionError, MirbadError) as error:
        counted["lost"] += 1
        wrong.append(f"{run.scenario.name}, {fault} at {at}: {error!r}")
        return
    if found:
        counted["wrong"] += 1
        name = run.came_to[at] if at < len(run.came_to) else "not reached"
        wrong.append(f"{run.scenario.name}, {fault} at {at} ({name}): {found}")
