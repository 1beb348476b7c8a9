"""Two rotations of a whole fleet, the first rolled back: nodes go away, come back and join, the master dies at every
boundary, and nobody is locked out. ``MIRBAD_TEST_CA_NODES`` sets the size, ``MIRBAD_TEST_CA_REPORT`` takes figures.
"""

import json
import os
import random
import time
from pathlib import Path

import pytest

from jobs.queries import unfinished
from jobs.requests import ca_rotation
from mirbad.kernel import clock
from nodes.models import CaRotation, NodeCondition
from nodes.pki import authority, store
from tests.trust.ca_fleet import OPERATOR, Crashes, Fleet, insist, moving_clock, stage, survive

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1400)]

NODES = int(os.environ.get("MIRBAD_TEST_CA_NODES", "10"))
REPORT = os.environ.get("MIRBAD_TEST_CA_REPORT", "")
AWAY, JOINING = 0.2, 0.1
STAGES = ("Started", "AgentsTrusting", "MasterReissued", "AgentsRotating", "Closing")
ROUNDS = 200


class Story:
    """Changes of the fleet beside the rotation."""

    def __init__(self, fleet: Fleet, drawn: random.Random):
        self.fleet, self.drawn = fleet, drawn
        self.joins = max(1, round(NODES * JOINING))
        self.away: list[str] = []
        self.went = 0
        self.seen: list[str] = []

    def at(self, now: str) -> None:
        """A stage begins: those who were away are back, others go, somebody may join."""
        if now in self.seen:
            return
        self.seen.append(now)
        self.back()
        if self.joins:
            self.joins -= 1
            self.fleet.add(f"late-{now.lower()}-{len(self.fleet.nodes)}")
        up = sorted(node_id for node_id, agent in self.fleet.nodes.items() if agent.up)
        self.away = self.drawn.sample(up, max(1, round(len(up) * AWAY)))
        self.went += len(self.away)
        self.fleet.down(*self.away)

    def back(self) -> None:
        if self.away:
            self.fleet.up(*self.away)
            self.away = []


def play(fleet, story, crashes, end):
    """Go through the stages until `end`; in each one nodes are away for a while, and the rotation waits for them."""
    waited = [0]

    def until():
        now = stage()
        if now != "" and now not in story.seen and now != end:
            story.at(now)
            waited[0] = 0
        waited[0] += 1
        if waited[0] == 15:
            story.back()
        return now == end

    survive(fleet, until, crashes, ROUNDS)
    story.back()


def test_a_fleet_goes_through_a_rotation_rolled_back_and_one_carried_out(transactional_db, tmp_path, monkeypatch):
    authority.ensure()
    now, forward = moving_clock()
    monkeypatch.setattr(clock, "now", now)
    fleet = Fleet(tmp_path, forward)
    drawn = random.Random(int(os.environ.get("MIRBAD_TEST_CA_SEED", "7")))
    began = time.monotonic()
    try:
        late = max(1, round(NODES * JOINING))
        for number in range(NODES - late):
            fleet.add(f"pc-{number}")
        before = store.trust()
        crashes = Crashes(monkeypatch)
        story = Story(fleet, drawn)
        ca_rotation.start(OPERATOR)
        play(fleet, story, crashes, "AgentsRotating")
        survive(fleet, lambda: rotated_some(fleet), crashes, ROUNDS)
        insist(lambda: ca_rotation.roll_back(OPERATOR))
        story.seen.clear()
        play(fleet, story, crashes, "RolledBack")
        assert store.trust() == before
        locked_out = fleet.locked_out()
        story.seen.clear()
        survive(fleet, lambda: not open_operation(), crashes, ROUNDS)
        ca_rotation.start(OPERATOR)
        play(fleet, story, crashes, "Closed")
        survive(fleet, lambda: not open_operation(), crashes, ROUNDS)
        locked_out += fleet.locked_out()
        stranded = NodeCondition.objects.filter(source="ca-rotation").count()
        new = store.trust().bundle
        under_new = sum(agent.identity.ca_bundle == new for agent in fleet.nodes.values())
        report(fleet, story, crashes, locked_out, under_new, time.monotonic() - began)
        assert len(fleet.nodes) == NODES
        assert locked_out == []
        assert stranded == 0
        assert under_new == NODES
        assert new != before.bundle
        assert {boundary.split()[0] for boundary in crashes.met} >= {*STAGES, "RollingBack"}
    finally:
        fleet.close()


def rotated_some(fleet):
    rotation = CaRotation.objects.order_by("-started_at").first()
    return len(set(rotation.nodes.filter(done_stage="AgentsRotating"))) >= max(1, NODES // 5)


def open_operation():
    return unfinished().filter(kind="ca-rotation").exists()


def report(fleet, story, crashes, locked_out, under_new, seconds):
    if REPORT:
        told = {
            "nodes": len(fleet.nodes),
            "joined": sum(node_id.startswith("late-") for node_id in fleet.nodes),
            "went": story.went,
            "crashes": len(crashes.met),
            "locked out": len(locked_out),
            "under new": under_new,
            "seconds": round(seconds, 1),
        }
        Path(REPORT).write_text(json.dumps(told))
