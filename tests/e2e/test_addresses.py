"""MIRBAD_BIND in every form: the own node joins, and each address that is printed works."""

import http.client
import socket

import psutil
import pytest

from tests.e2e.fleet import Failed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


def own_address(family: socket.AddressFamily) -> str:
    """Return an address of one interface of this machine, which is not loopback."""
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            is_local = entry.address.startswith(("127.", "fe80:")) or entry.address == "::1"
            if entry.family == family and not is_local:
                return entry.address
    return "127.0.0.9" if family == socket.AF_INET else "::1"


@pytest.mark.parametrize(
    ("bind", "printed", "reached"),
    [
        ("::1", "::1", ["::1"]),
        ("[::]:PORT", "127.0.0.1", ["127.0.0.1", "::1"]),
        ("IPV4", "IPV4", ["IPV4"]),
        ("[IPV6]", "IPV6", ["IPV6"]),
    ],
)
def test_the_own_node_joins_whatever_the_master_listens_on(make_fleet, bind, printed, reached):
    def real(text: str) -> str:
        found = text.replace("IPV4", own_address(socket.AF_INET)).replace("IPV6", own_address(socket.AF_INET6))
        return found.replace("PORT", port)

    fleet = make_fleet()
    port = str(fleet.ports["MIRBAD_PORT"])
    fleet.environ["MIRBAD_BIND"] = real(bind)
    if "PORT" in bind:
        del fleet.environ["MIRBAD_PORT"]
    fleet.start()
    fleet.host = real(printed)
    assert any("Node local is online" in line for line in fleet.lines)
    assert f"  Mirbad is up       {fleet.url}" in fleet.lines
    for host in map(real, reached):
        fleet.host = host
        assert fleet.request("GET", "/login")[0] == http.client.OK
        made = fleet.api("POST", "nodes/join-tokens", {"nodeId": f"pc-{len(host)}"})
        bracketed = f"[{host}]" if ":" in host else host
        assert made["enrollUrl"] == f"https://{bracketed}:{fleet.ports['MIRBAD_ENROLL_PORT']}"
        assert f"http://{bracketed}:{port}/agent/bundles" in made["commands"]["linux"]
        socket.create_connection((host, fleet.ports["MIRBAD_ENROLL_PORT"]), timeout=5).close()


def test_without_its_node_a_master_does_not_say_that_it_is_ready(make_fleet):
    fleet = make_fleet()
    (fleet.data / "agent").mkdir(parents=True)
    fleet.data.chmod(0o700)
    (fleet.data / "agent" / "agent.json").write_text("{")
    fleet.start()
    text = "\n".join(fleet.lines)
    assert "Node local of this machine is missing." in text
    assert "agent.json is not valid JSON" in text
    assert "Mirbad is up" not in text
    assert "All services are ready" not in text
    assert fleet.request("GET", "/login")[0] == http.client.OK, "the pages are there to see what is wrong"


def test_a_port_in_bind_and_another_one_beside_are_refused(make_fleet):
    fleet = make_fleet()
    fleet.environ["MIRBAD_BIND"] = "[::]:8000"
    with pytest.raises(Failed, match="MIRBAD_BIND has the port 8000 and MIRBAD_PORT is"):
        fleet.start(seconds=20)
    assert fleet.up.wait(10) == 2
