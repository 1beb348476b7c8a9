"""``kill -9`` of one process after another in the middle of a launch: it finishes once, nothing is started twice."""

import os
import signal

import pytest

from tests.e2e.fleet import EngineWatch
from tests.waiting import pause, stays, until

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
            until(lambda: fleet.engines(model), seconds=30, what="an engine")
        os.kill(fleet.pid(victim), signal.SIGKILL)
        assert fleet.wait_for_answer(model, 90)
        stays(lambda: len(watch.seen) == 1, "an engine was started again", 2)
    assert len(watch.seen) == 1, f"{len(watch.seen)} engines were started"
    until(fleet.request_is_ready, seconds=40, what="readiness")
    done = until(
        lambda: (row := operation(fleet, asked["id"]))["outcome"] != "open" and row, seconds=40, what="the operation"
    )
    assert done["outcome"] == "succeeded", done
    fleet.api("POST", f"models/{model}/stop")
    until(lambda: not fleet.engines(model), seconds=40, what="the engine to end")


def test_all_five_killed_one_after_another_during_one_launch(fleet):
    model = "five"
    fleet.define_sim(model, "local", "--start-seconds", "12")
    with EngineWatch(fleet, model) as watch:
        asked = fleet.api("POST", f"models/{model}/start")
        for victim in VICTIMS:
            os.kill(fleet.pid(victim), signal.SIGKILL)
            pause(1.5)
        assert fleet.wait_for_answer(model, 120)
        stays(lambda: len(watch.seen) == 1, "an engine was started again", 2)
    assert len(watch.seen) == 1
    until(fleet.request_is_ready, seconds=40, what="readiness")
    done = until(
        lambda: (row := operation(fleet, asked["id"]))["outcome"] != "open" and row, seconds=60, what="the operation"
    )
    assert done["outcome"] == "succeeded", done


def test_the_supervisor_killed_during_a_launch(fleet):
    model = "orphan"
    fleet.define_sim(model, "local", "--start-seconds", str(START_SECONDS))
    with EngineWatch(fleet, model) as watch:
        fleet.api("POST", f"models/{model}/start")
        until(lambda: fleet.engines(model), seconds=30, what="an engine")
        fleet.kill()
        fleet.start()
        assert fleet.wait_for_answer(model, 90)
    assert len(watch.seen) == 1


def test_an_engine_that_is_killed_serves_again_by_itself(fleet):
    model = "killed"
    fleet.define_sim(model, "local")
    fleet.api("POST", f"models/{model}/start")
    assert fleet.wait_for_answer(model, 60)
    (pid,) = fleet.engines(model)
    os.kill(pid, signal.SIGKILL)
    assert fleet.wait_for_answer(model, 60)
    (again,) = fleet.engines(model)
    assert again != pid
    bearer = {"Authorization": f"Bearer {fleet.token}"}
    metrics = fleet.request("GET", "/metrics", headers=bearer)[2].decode()
    assert f'mirbad_model_engine_exits_total{{model="{model}",node="local"}} 1.0' in metrics
    starts = fleet.api("GET", f"operations?modelId={model}&kind=launch")["items"]
    assert [row["actor"] for row in starts].count("system:restart") == 1
