"""The README's "add a machine", from a second host with its own address: install, join, approve, run."""

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.fleet import ROOT, Fleet, wait_until
from tests.e2e.host import Host, require_root_and_tools

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def host():
    require_root_and_tools()
    machine = Host().start()
    yield machine
    machine.close()


@pytest.fixture(scope="module")
def fleet(host, tmp_path_factory):
    made = Fleet(
        tmp_path_factory.mktemp("fleet"),
        MIRBAD_BIND="0.0.0.0",
        MIRBAD_HOSTS=host.master_address,
    ).start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The locked libraries as files: the second machine has no network but the cable to the master."""
    folder = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--require-hashes"]
    subprocess.run([*pip, "-r", ROOT / "requirements" / "agent.txt", "-d", folder], check=True)
    return folder


def test_the_command_that_add_node_shows_makes_a_second_machine_serve(fleet, host, wheels):
    made = fleet.api("POST", "nodes/join-tokens", {"nodeId": "pc-1", "displayName": "The PC"}, expect=201)
    command = made["commands"]["linux"]
    assert made["token"] not in command
    assert f"http://127.0.0.1:{fleet.ports['MIRBAD_PORT']}/agent/bundles/" in command
    # a browser on the LAN asks by the master's address, which is in MIRBAD_HOSTS
    command = command.replace("127.0.0.1", host.master_address)
    if host.run("command -v sudo").returncode:
        host.run("printf '#!/bin/sh\\nshift; exec \"$@\"\\n' > /usr/local/bin/sudo; chmod 755 /usr/local/bin/sudo")
    done = host.run(
        f"bash -c {shlex.quote(command)}",
        MIRBAD_JOIN_TOKEN=made["token"],
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(wheels),
        PIP_CONFIG_FILE="/dev/null",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    fingerprint = re.search(r"Key fingerprint \(SPKI SHA-256\): ([0-9a-f ]+)", done.stdout)[1].replace(" ", "")
    assert made["token"] not in done.stdout + done.stderr
    start = re.search(r"^ +(runuser .+)$", done.stdout, re.MULTILINE)[1]
    host.spawn(start)

    waiting = fleet.api("GET", "nodes/pc-1")
    assert waiting["state"] == "PendingApproval"
    fleet.api("POST", "nodes/pc-1/approve", {"expectedSpkiSha256": "0" * 64}, expect=409)
    fleet.api("POST", "nodes/pc-1/approve", {"expectedSpkiSha256": fingerprint})
    wait_until(lambda: fleet.api("GET", "nodes/pc-1")["state"] in {"Online", "Degraded"}, seconds=40, what="pc-1")

    fleet.define_sim("far", "pc-1")
    fleet.api("POST", "models/far/start")
    assert fleet.wait_for_answer("far")
    engines = fleet.engines("far")
    assert engines <= host.pids(), "the engine runs on the second machine"


def test_the_token_is_used_up(fleet, host):
    # the first machine's command, pasted on a third one
    code = (
        "import json; from nodes.models import JoinToken;"
        "print(json.dumps([bool(t.used_at) for t in JoinToken.objects.filter(node_id_text='pc-1')]))"
    )
    assert fleet.inside(code) == [True]
    made = fleet.api("POST", "nodes/join-tokens", {"nodeId": "pc-1"}, expect=409)
    assert made["code"] == "invalid_state"


def test_an_agent_that_restarts_finds_its_engine_again(fleet, host):
    (engine,) = fleet.engines("far")
    (agent,) = [
        pid for pid in host.pids() if b"mirbad-agent\0serve" in Path(f"/proc/{pid}/cmdline").read_bytes()
        and b"runuser" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]  # fmt: skip
    host.run(f"kill -9 {agent}")
    host.spawn("runuser -u mirbad-agent -- /usr/local/bin/mirbad-agent serve --config /etc/mirbad-agent/agent.json")
    assert fleet.wait_for_answer("far")
    assert fleet.engines("far") == {engine}


def test_a_pulled_cable_is_an_offline_node_and_ends_as_it_began(fleet, host):
    (engine,) = fleet.engines("far")
    host.pull_cable()
    try:
        wait_until(lambda: fleet.api("GET", "nodes/pc-1")["state"] == "Offline", seconds=60, what="pc-1 to be offline")
        time.sleep(2)  # what was asked in the second before may still wait for its first byte
        status, headers, body = fleet.request(
            "POST",
            "/v1/chat/completions",
            {"model": "far", "messages": [{"role": "user", "content": "Hi"}]},
            headers={"Authorization": f"Bearer {fleet.key}"},
        )
        assert status == 503
        assert json.loads(body)["error"]["code"] == "node_offline"
        assert headers["retry-after"].isdigit()
    finally:
        host.plug_cable()
    assert fleet.wait_for_answer("far")
    assert fleet.engines("far") == {engine}


def test_the_installed_files_are_owned_and_closed_as_the_unit_expects(host):
    seen = host.run(
        "stat -c '%U %a %n' /etc/mirbad-agent/agent.json /var/lib/mirbad-agent /srv/mirbad/models;"
        "find /var/lib/mirbad-agent -name key.pem -exec stat -c '%U %a' {} +;"
        "mirbad-agent --version; id -nG mirbad-agent"
    ).stdout.splitlines()
    assert seen[:4] == [
        "root 640 /etc/mirbad-agent/agent.json",
        "mirbad-agent 700 /var/lib/mirbad-agent",
        "mirbad-agent 755 /srv/mirbad/models",
        "mirbad-agent 600",
    ]
