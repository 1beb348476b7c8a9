"""A port that cannot be had is one sentence that says what to change."""

import socket

import pytest

from mirbad.kernel.conf import Settings
from mirbad.up.errors import CannotStart
from mirbad.up.ports import Port, require_free, required

pytestmark = pytest.mark.unit


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_free_ports_are_accepted():
    number = free_port()
    require_free((Port("127.0.0.1", number, "MIRBAD_PORT", "pages and /v1"),))
    with socket.create_server(("127.0.0.1", number)) as server:
        assert server.getsockname()[1] == number, "the check itself held the port"


def test_a_taken_port_names_the_port_its_holder_and_the_setting():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        number = holder.getsockname()[1]
        with pytest.raises(CannotStart, match=rf"^Port {number} \(pages and /v1\) is in use by .+ set MIRBAD_PORT to"):
            require_free((Port("127.0.0.1", number, "MIRBAD_PORT", "pages and /v1"),))


def test_a_port_that_was_just_closed_is_free():
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as every server of ours does
        server.bind(("127.0.0.1", 0))
        server.listen()
        number = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", number))
        accepted, _ = server.accept()
        accepted.close()  # the server closes first, so the port is in TIME_WAIT afterwards
        client.close()
    require_free((Port("127.0.0.1", number, "MIRBAD_PORT", "pages and /v1"),))
    with socket.create_server(("127.0.0.1", number)) as server:
        assert server.getsockname()[1] == number, "a server of ours can have it"


@pytest.mark.parametrize("over", [False, True])
def test_a_port_at_the_near_end_of_an_outgoing_connection_is_told_from_one_with_a_listener(over):
    with socket.socket() as far:
        far.bind(("127.0.0.1", 0))
        far.listen()
        client = socket.create_connection(far.getsockname())
        accepted, _ = far.accept()
        number = client.getsockname()[1]
        if over:
            client.close()  # it closes first, so that its end is in TIME_WAIT afterwards
            accepted.close()
        who = "that has just ended" if over else r"of .+ \(process \d+\)"
        said = rf"in use by an outgoing connection {who}\. Try again in a minute, or set MIRBAD_PORT"
        with pytest.raises(CannotStart, match=said):
            require_free((Port("127.0.0.1", number, "MIRBAD_PORT", "pages and /v1"),))
        client.close()
        accepted.close()


def test_a_port_that_is_freed_in_time_is_waited_for():
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    holder.listen()
    port = Port("127.0.0.1", holder.getsockname()[1], "MIRBAD_PORT", "pages and /v1")
    slept: list[float] = []

    def sleep(seconds):
        slept.append(seconds)
        holder.close()

    require_free((port,), patience_seconds=60, sleep=sleep)
    assert len(slept) == 1


def test_two_settings_with_one_number_are_refused_by_name():
    with pytest.raises(CannotStart, match="MIRBAD_PORT and MIRBAD_ENROLL_PORT are both 9000"):
        require_free(required(Settings(port=9000, enroll_port=9000)))


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(CannotStart, match="MIRBAD_BIND"):
        require_free((Port("192.0.2.7", free_port(), "MIRBAD_PORT", "pages and /v1"),))


@pytest.mark.parametrize("holder", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_port_for_every_address_is_taken_when_it_is_taken_on_one(holder):
    family = socket.AF_INET6 if ":" in holder else socket.AF_INET
    with socket.create_server((holder, 0), family=family) as server:
        number = server.getsockname()[1]
        with pytest.raises(CannotStart, match=rf"^Port {number} .+ is in use by"):
            require_free((Port("::", number, "MIRBAD_PORT", "pages and /v1"),))


def test_a_port_of_one_address_is_free_when_it_is_taken_on_another():
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        require_free((Port("::1", number, "MIRBAD_PORT", "pages and /v1"),))
        require_free((Port("127.0.0.9", number, "MIRBAD_PORT", "pages and /v1"),))
        with pytest.raises(CannotStart, match="is in use"):
            require_free((Port("127.0.0.1", number, "MIRBAD_PORT", "pages and /v1"),))


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7", "::8000", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_refused_with_those_of_this_one(address):
    with pytest.raises(CannotStart, match=r"MIRBAD_BIND.* Addresses of this machine: .*127\.0\.0\.1.* \[::\]:8080"):
        require_free((Port(address, free_port(), "MIRBAD_PORT", "pages and /v1"),))
