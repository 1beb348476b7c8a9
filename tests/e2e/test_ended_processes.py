"""Processes that end: each is started again, and engines are adopted."""

import http.client
import json
import os
import signal
import time

import psutil
import pytest

from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_a_starter_engine_that_died_with_everything_else_is_started_once_more(make_fleet):
    fleet = make_fleet(starter="smollm2-135m").start()
    (engine,) = fleet.engines("smollm2-135m")
    fleet.kill()
    os.kill(engine, signal.SIGKILL)
    fleet.start()
    fleet.wait_for_line("First token streamed")
    assert fleet.engines("smollm2-135m") not in (set(), {engine})


def test_after_a_crash_running_engines_are_adopted(make_fleet):
    fleet = make_fleet(starter="smollm2-135m").start()
    engines = fleet.engines("smollm2-135m")
    fleet.kill()
    until(
        lambda: {process.pid for process in fleet.leftovers()} == engines,
        seconds=15,
        what="everything but the engine to end with make up",
    )
    fleet.start()
    fleet.wait_for_line("is still running and was adopted")
    assert fleet.engines("smollm2-135m") == engines, "the same process, not another one"
    assert fleet.chat("smollm2-135m")


@pytest.mark.parametrize("victim", ["supervisord", "web", "enroll", "watcher", "worker", "beat", "broker", "agent"])
def test_a_killed_process_is_started_again_and_that_is_said(fleet, victim):
    before = psutil.Process(fleet.pid("web")).ppid() if victim == "supervisord" else fleet.pid(victim)
    fleet.lines.clear()
    os.kill(before, signal.SIGKILL)
    fleet.wait_for_line(f"{victim} ", 30)
    until(lambda: fleet.request_is_ready(), seconds=40, what="readiness")
    if victim != "supervisord":
        assert fleet.pid(victim) != before


def test_a_second_ctrl_c_hurries(make_fleet):
    # its engine does not listen to SIGTERM, so an orderly stop waits for the grace
    fleet = make_fleet().start()
    fleet.define_sim("stubborn", "local", "--ignore-sigterm")
    fleet.api("POST", "models/stubborn/start")
    fleet.wait_for_answer("stubborn")
    begin = time.monotonic()
    fleet.up.send_signal(signal.SIGINT)
    fleet.wait_for_line("Press Ctrl-C again to hurry")
    assert fleet.stop(signal.SIGINT) == 130
    assert time.monotonic() - begin < 8
    assert fleet.leftovers() == []


def test_health_says_what_is_not_ready(fleet):
    assert fleet.request("GET", "/healthz")[0] == 200
    os.kill(fleet.pid("beat"), signal.SIGSTOP)
    try:

        def reasons():
            status, _, body = fleet.request("GET", "/readyz")
            return status == http.client.SERVICE_UNAVAILABLE and json.loads(body)["reasons"]

        seen = until(reasons, seconds=30, what="readiness to end")
        assert any("beat" in reason for reason in seen)
    finally:
        os.kill(fleet.pid("beat"), signal.SIGCONT)
    until(lambda: fleet.request_is_ready(), seconds=30, what="readiness")
