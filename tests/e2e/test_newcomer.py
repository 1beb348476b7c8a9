"""The path of a newcomer: from nothing to a streamed token, to an end and back."""

import re
import signal
import stat
import subprocess

import psutil
import pytest

from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def test_make_up_ends_in_a_streamed_token_and_in_lines_that_work(make_fleet):
    fleet = make_fleet(starter="smollm2-135m").start()
    assert any("First token streamed through /v1" in line for line in fleet.lines)
    for name in ("admin-password", "api-key", "secret-key"):
        path = fleet.data / "secrets" / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = "\n".join(fleet.lines)
    assert fleet.key not in text, "the key itself must not be printed"
    curl = re.search(r"^curl .*?-d '.*?'$", text, re.MULTILINE | re.DOTALL)[0]
    done = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.rstrip().endswith("data: [DONE]")
    assert '"content":' in done.stdout.replace(" ", "")


def test_everything_ends_with_ctrl_c_and_comes_back_where_it_was(make_fleet):
    fleet = make_fleet(starter="smollm2-135m").start()
    engines = fleet.engines("smollm2-135m")
    assert len(engines) == 1
    key = fleet.key
    assert fleet.stop(signal.SIGINT) == 0
    assert fleet.leftovers() == []
    assert not any(map(psutil.pid_exists, engines))
    fleet.start()
    assert not any("joined as node" in line or "is approved" in line for line in fleet.lines), "nothing is repeated"
    assert fleet.key == key
    assert fleet.chat("smollm2-135m")
    assert fleet.stop(signal.SIGTERM) == 0
    assert fleet.leftovers() == []


def test_a_stopped_starter_model_stays_stopped(make_fleet):
    fleet = make_fleet(starter="smollm2-135m").start()
    fleet.api("POST", "models/smollm2-135m/stop")
    until(lambda: not fleet.engines("smollm2-135m"), seconds=30, what="the engine to end")
    until(lambda: fleet.observed("smollm2-135m") == "stopped", seconds=30, what="the stop to be seen")
    fleet.stop()
    fleet.start()
    fleet.wait_for_line("The starter model smollm2-135m is stopped; leaving it so.")
    assert not any("curl" in line for line in fleet.lines), "the line to paste would not work"
    assert not fleet.engines("smollm2-135m")
