"""The README's "add a machine", from a second host with its own address: install, join, approve, run."""

import json
import time
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet
from tests.e2e.host import Host, require_root_and_tools
from tests.e2e.joining import join
from tests.waiting import until

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
def pasted(fleet, host, wheels):
    """The second machine as the shown command made it: joined, approved, and serving the model `far`."""
    return join(fleet, host, wheels, "pc-1", "far")


def test_the_command_that_add_node_shows_makes_a_second_machine_serve(fleet, host, pasted):
    assert f"http://127.0.0.1:{fleet.ports['MIRBAD_PORT']}/agent/bundles/" in pasted.command
    assert pasted.token not in pasted.command + pasted.said
    assert pasted.state_before_approval == "PendingApproval"
    engines = fleet.engines("far")
    assert engines
    assert engines <= host.pids(), "the engine runs on the second machine"


def test_a_wrong_token_leaves_no_installation_behind(pasted):
    assert pasted.left_by_a_wrong_token == ""


def test_the_token_is_used_up(fleet, pasted):
    code = (
        "import json; from nodes.models import JoinToken;"
        "print(json.dumps([bool(t.used_at) for t in JoinToken.objects.filter(node_id_text='pc-1')]))"
    )
    assert fleet.inside(code) == [True]
    made = fleet.api("POST", "nodes/join-tokens", {"nodeId": "pc-1"}, expect=409)
    assert made["code"] == "invalid_state"


def test_an_agent_that_restarts_finds_its_engine_again(fleet, host, pasted):
    (engine,) = fleet.engines("far")
    (agent,) = [
        pid for pid in host.pids() if b"mirbad-agent\0serve" in Path(f"/proc/{pid}/cmdline").read_bytes()
        and b"runuser" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]  # fmt: skip
    host.run(f"kill -9 {agent}")
    host.spawn("runuser -u mirbad-agent -- /usr/local/bin/mirbad-agent serve --config /etc/mirbad-agent/agent.json")
    assert fleet.wait_for_answer("far")
    assert fleet.engines("far") == {engine}


def test_a_pulled_cable_is_an_offline_node_and_ends_as_it_began(fleet, host, pasted):
    (engine,) = fleet.engines("far")
    host.pull_cable()
    try:
        asked = time.monotonic()
        status, _, body = fleet.request(
            "POST",
            "/v1/chat/completions",
            {"model": "far", "messages": [{"role": "user", "content": "Hi"}]},
            headers={"Authorization": f"Bearer {fleet.key}"},
            seconds=60,
        )
        assert status in {502, 503}, body
        assert time.monotonic() - asked < 45, "whoever asked just before is told, too"
        until(lambda: fleet.api("GET", "nodes/pc-1")["state"] == "Offline", seconds=60, what="pc-1 to be offline")
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


def test_the_installed_files_are_owned_and_closed_as_the_unit_expects(host, pasted):
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
