"""``kill -9`` of one process after another in the middle of a launch: it finishes once, nothing is started twice."""

import os
import signal
import time

import pytest

from tests.e2e.fleet import EngineWatch, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

VICTIMS = ("agent", "worker", "watcher", "broker", "web")
START_SECONDS = 4.0


def operation(fleet, identity):
    return fleet.api("GET", f"operations/{identity}")


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("moment", ["at once", "while it loads"])
def test_a_launch_survives_the_death_of_one_process(fleet, victim, moment):
    model = f"m-{victim}-{moment.split()[0]}"
    fleet.define_sim(model, "local", "--start-seconds", str(START_SECONDS))
    with EngineWatch(fleet, model) as watch:
        asked = fleet.api("POST", f"models/{model}/start")
        if moment == "while it loads":
            wait_until(lambda: fleet.engines(model), seconds=30, what="an engine")
        os.kill(fleet.pid(victim), signal.SIGKILL)
        assert fleet.wait_for_answer(model, 90)
        time.sleep(2)  # a second start would come now
    assert len(watch.seen) == 1, f"{len(watch.seen)} engines were started"
    wait_until(fleet.request_is_ready, seconds=40, what="readiness")
    done = wait_until(
        lambda: (row := operation(fleet, asked["id"]))["outcome"] != "open" and row, seconds=40, what="the operation"
    )
    assert done["outcome"] == "succeeded", done
    fleet.api("POST", f"models/{model}/stop")
    wait_until(lambda: not fleet.engines(model), seconds=40, what="the engine to end")


def test_all_five_killed_one_after_another_during_one_launch(fleet):
    model = "five"
    fleet.define_sim(model, "local", "--start-seconds", "12")
    with EngineWatch(fleet, model) as watch:
        asked = fleet.api("POST", f"models/{model}/start")
        for victim in VICTIMS:
            os.kill(fleet.pid(victim), signal.SIGKILL)
            time.sleep(1.5)
        assert fleet.wait_for_answer(model, 120)
        time.sleep(2)
    assert len(watch.seen) == 1
    wait_until(fleet.request_is_ready, seconds=40, what="readiness")
    done = wait_until(
        lambda: (row := operation(fleet, asked["id"]))["outcome"] != "open" and row, seconds=60, what="the operation"
    )
    assert done["outcome"] == "succeeded", done


def test_the_supervisor_killed_during_a_launch(fleet):
    model = "orphan"
    fleet.define_sim(model, "local", "--start-seconds", str(START_SECONDS))
    with EngineWatch(fleet, model) as watch:
        fleet.api("POST", f"models/{model}/start")
        wait_until(lambda: fleet.engines(model), seconds=30, what="an engine")
        fleet.kill()
        fleet.start()
        assert fleet.wait_for_answer(model, 90)
    assert len(watch.seen) == 1
