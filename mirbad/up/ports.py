"""Ports that must be free before anything starts."""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from agent.common import listening
from mirbad.kernel.conf import Settings
from mirbad.up.errors import CannotStart


@dataclass(frozen=True, slots=True)
class Port:
    """A port that one of our processes will listen on, and the setting that changes it."""

    address: str
    number: int
    variable: str
    use: str


def required(settings: Settings) -> tuple[Port, ...]:
    """Return the ports of this master and of its own node."""
    return (
        Port(settings.bind, settings.port, "MIRBAD_PORT", "pages and /v1"),
        Port(settings.bind, settings.enroll_port, "MIRBAD_ENROLL_PORT", "the enroll listener"),
        Port("127.0.0.1", settings.agent_port, "MIRBAD_AGENT_PORT", "this machine's agent"),
    )


def _taken(port: Port) -> OSError | None:
    """Open each socket that the server will open. Return the first error."""
    try:
        sockets = listening.sockets_of(port.address, port.number)
    except socket.gaierror as error:
        raise CannotStart(
            f"MIRBAD_BIND={port.address} is not an address of this machine ({error.strerror}). {_addresses()}"
        ) from error
    for family, address in sockets:
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # a kernel without IPv6: servers leave such a socket out, too
        with probe:
            # servers set both, too: a port in TIME_WAIT is free, one with a listener is not
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind(address)
                probe.listen(1)
            except OSError as error:
                return error
    return None


def _addresses() -> str:
    """Return a sentence with the addresses of this machine."""
    found = {
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family in {socket.AF_INET, socket.AF_INET6} and "%" not in entry.address
    }
    listed = ", ".join(sorted(found, key=lambda address: (":" in address, address)))
    return f"Addresses of this machine: {listed}. An IPv6 address with a port is written [::]:8080."


def _holder(number: int) -> str:
    """Return the process that listens on a port, as text; empty when none is found."""
    for connection in _connections(number):
        if connection.status == psutil.CONN_LISTEN and connection.pid:
            return f" by {_process(connection.pid)}"
    return ""


def _passer_by(number: int) -> str:
    """Return the owner of an outgoing connection that uses a port, on which the kernel allows no listener meanwhile."""
    found = [connection for connection in _connections(number) if connection.raddr]
    if not found:
        return ""
    pid = next((connection.pid for connection in found if connection.pid), None)
    return f"an outgoing connection of {_process(pid)}" if pid else "an outgoing connection that has just ended"


def _connections(number: int) -> list[Any]:
    try:
        return [item for item in psutil.net_connections("tcp") if item.laddr and item.laddr.port == number]
    except (psutil.Error, OSError):
        return []


def _process(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).name()} (process {pid})"
    except psutil.Error:
        return f"process {pid}"


def require_free(
    ports: tuple[Port, ...], *, patience_seconds: float = 0.0, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Raise CannotStart for a port that is in use, forbidden or named twice.

    `patience_seconds` is for the moments after a crash, while processes of the last run still end.
    """
    numbers: dict[int, Port] = {}
    for port in ports:
        other = numbers.setdefault(port.number, port)
        if other is not port:
            raise CannotStart(f"{other.variable} and {port.variable} are both {port.number}. Change one of them.")
    deadline = time.monotonic() + patience_seconds
    for port in ports:
        while (error := _taken(port)) is not None:
            if time.monotonic() < deadline:
                sleep(0.1)
                continue
            raise CannotStart(_sentence(port, error)) from error


def _sentence(port: Port, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return (
            f"Port {port.number} ({port.use}) needs privileges that this user does not have. "
            f"Set {port.variable} to a port above 1023."
        )
    holder = _holder(port.number)
    if not holder and (passer_by := _passer_by(port.number)):
        return (
            f"Port {port.number} ({port.use}) is in use by {passer_by}. "
            f"Try again in a minute, or set {port.variable} to another port."
        )
    if not holder and "in use" not in str(error):
        return (
            f"Port {port.number} on {port.address} ({port.use}) cannot be bound: {error.strerror}. Check MIRBAD_BIND. "
            f"{_addresses()}"
        )
    return (
        f"Port {port.number} ({port.use}) is in use{holder}. Stop that process, or set {port.variable} to a free port."
    )
