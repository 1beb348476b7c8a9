"""The master's own machine gets a new key by the command that its page shows, while everything runs."""

import subprocess

import pytest

from tests.e2e.fleet import wait_until

pytestmark = pytest.mark.e2e


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

    after = wait_until(online_again, seconds=40, what="the node to be back with its new key")
    assert (after["uid"], after["lifecycle"], after["pendingSpkiSha256"]) == (before["uid"], "approved", None)
    rotation = fleet.api("POST", "nodes/local/rotate-cert")
    ended = wait_until(
        lambda: (row := fleet.api("GET", f"operations/{rotation['id']}"))["outcome"] != "open" and row,
        seconds=40,
        what="a rotation after the rekey",
    )
    assert ended["outcome"] == "succeeded", ended
