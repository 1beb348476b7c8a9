"""Forty agents under a real watcher: silence of some is noticed on time, and ends when they are back."""

import time

import pytest

from tests.bench.simfleet.fleet import SimFleet, agents_folder
from tests.bench.simfleet.master import SimMaster
from tests.waiting import until

pytestmark = pytest.mark.faults

NODES = 40
SLOW = 6
"""A machine at work on other things may be this much later than an idle one, in seconds."""


def test_nodes_that_hang_or_are_killed_read_offline_in_time_and_online_again(tmp_path):
    with agents_folder() as agents:
        master = SimMaster(tmp_path)
        try:
            fleet = SimFleet(master, NODES, agents, processes=1)
            watched = fleet.watch()
            web = master.web(wait=False)
            until(lambda: watched.running() and master.answers(web), "an answer of the web process", 60)
            fleet.wait_for_all(60)
            before = {item["id"]: item["lastSeenAt"] for item in fleet.items()}
            fleet.fall_silent()
            began = time.monotonic()
            until(lambda: fleet.states().get("Offline", 0) == fleet.silent, "the silent ones to be offline", 60)
            took = time.monotonic() - began
            # A last word may be as old as two statuses when the silence begins.
            assert 3 < took < 16 + SLOW
            worked = [item for item in fleet.items() if item["state"] != "Offline"]
            assert len(worked) == NODES - fleet.silent
            assert all(item["lastSeenAt"] > before[item["id"]] for item in worked)
            assert all(item["reasons"] for item in fleet.items() if item["state"] == "Offline")
            fleet.come_back()
            fleet.wait_for_all(15 + SLOW)
            assert fleet.tracebacks() == []
            assert "database is locked" not in master.logs()
        finally:
            master.close()
