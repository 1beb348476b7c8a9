"""The master's own machine gets a new key by the command that its page shows, while everything runs."""

import subprocess

import pytest

from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_the_command_for_the_own_machine_gives_its_agent_a_new_key(fleet):
    before = fleet.api("GET", "nodes/local")
    made = fleet.api("POST", "nodes/join-tokens", {"nodeId": "local", "rekey": True})
    environ = {**fleet.environ, "MIRBAD_JOIN_TOKEN": made["token"]}
    done = subprocess.run(
        ["sh", "-c", made["commands"]["linux"]], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

    def online_again():
        row = fleet.api("GET", "nodes/local")
        return row["spkiSha256"] != before["spkiSha256"] and row["state"] == "Online" and row

    after = until(online_again, seconds=40, what="the node to be back with its new key")
    assert (after["uid"], after["lifecycle"], after["pendingSpkiSha256"]) == (before["uid"], "approved", None)
    rotation = fleet.api("POST", "nodes/local/rotate-cert")
    ended = until(
        lambda: (row := fleet.api("GET", f"operations/{rotation['id']}"))["outcome"] != "open" and row,
        seconds=40,
        what="a rotation after the rekey",
    )
    assert ended["outcome"] == "succeeded", ended


def test_after_the_ca_was_replaced_the_own_machine_comes_back_by_its_command_and_by_the_next_start(fleet):
    def replace() -> str:
        before = fleet.api("GET", "nodes/local")["spkiSha256"]
        fleet.api("POST", "pki/ca-replacement", {"confirm": "re-pair every node"})
        shown = fleet.api("GET", "nodes/local")
        assert any("Re-pair the node" in reason for reason in shown["reasons"]), shown
        return before

    def is_back(before: str) -> bool:
        row = fleet.api("GET", "nodes/local")
        return row["spkiSha256"] != before and row["state"] == "Online"

    old = replace()
    made = fleet.api("POST", "nodes/join-tokens", {"nodeId": "local", "rekey": True})
    environ = {**fleet.environ, "MIRBAD_JOIN_TOKEN": made["token"]}
    command = ["sh", "-c", made["commands"]["linux"]]
    # The enroll listener follows within a second; until then the command refuses to tell it the token.
    until(
        lambda: not subprocess.run(command, env=environ, capture_output=True, timeout=60, check=False).returncode,
        seconds=20,
        what="the enroll listener to show the new CA",
    )
    until(lambda: is_back(old), seconds=40, what="the node to be back by its command")

    old = replace()
    assert fleet.stop() == 0
    fleet.start()
    until(lambda: is_back(old), seconds=40, what="the node to be back by the next start")
    assert not fleet.api("GET", "pki/ca-rotation")["toRePair"]
