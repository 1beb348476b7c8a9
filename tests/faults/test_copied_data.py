"""A whole master started on a copy of its data folder: it is fenced, says so, and takes over by a flag file."""

import shutil

import pytest

from tests.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


def test_a_copied_data_folder_is_fenced_until_the_flag_file_takes_over(make_fleet):
    original = make_fleet().start()
    claim = original.api("GET", "fencing")
    assert (claim["state"], claim["nodes"][0]["state"]) == ("commanding", "Online")
    original.define_sim("small", "local")
    original.stop()

    copy = make_fleet()
    shutil.copytree(original.data, copy.data, symlinks=True, dirs_exist_ok=True)
    # Its agent listens elsewhere than the stored node says.
    copy.ports = {**original.ports, "MIRBAD_AGENT_PORT": copy.ports["MIRBAD_AGENT_PORT"]}
    copy.environ |= {name: str(port) for name, port in copy.ports.items()}
    copy.start()
    fenced = copy.api("GET", "fencing")
    assert (fenced["state"], fenced["epoch"]) == ("fenced", claim["epoch"])
    assert fenced["instanceId"] != claim["instanceId"]
    until(
        lambda: copy.api("GET", "nodes/local")["state"] == "PendingTakeover", seconds=20, what="the node to be blocked"
    )
    assert copy.api("GET", "nodes/local")["port"] == copy.ports["MIRBAD_AGENT_PORT"]
    assert copy.api("POST", "models/small/start", expect=409)["code"] == "master_fenced"

    flag = copy.data / "takeover"
    flag.touch()
    until(lambda: not flag.exists(), seconds=40, what="the flag file to be deleted")
    taken = copy.api("GET", "fencing")
    assert (taken["state"], taken["epoch"]) == ("commanding", claim["epoch"] + 1)
    until(
        lambda: copy.api("GET", "nodes/local")["state"] in ("Online", "Degraded"), seconds=30, what="the node to obey"
    )
    copy.api("POST", "models/small/start", expect=202)
    assert copy.wait_for_answer("small", 60)
    line = copy.api("GET", "audit?max=50")["items"]
    told = [(item["result"], item["actor"]) for item in line if item["action"] == "fencing.takeover"]
    assert told == [("succeeded", "config"), ("accepted", "config")]
