"""Idle connections: the freshest first, none that is dead or too old, never more than the capacity."""

from typing import Any

import pytest

from agent.common.http1.idle import IdleConnections

pytestmark = pytest.mark.unit


class FakeConnection:
    """The part of a connection that the list reads."""

    def __init__(self, idle_since: float = 0.0, *, alive: bool = True, reusable: bool = True) -> None:
        self.idle_since = idle_since
        self.alive = alive
        self.reusable = reusable
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def idle_with(*connections: Any, capacity: int = 4) -> IdleConnections:
    idle = IdleConnections(idle_seconds=10.0, capacity=capacity)
    for connection in connections:
        idle.add(connection)
    return idle


def test_the_freshest_is_taken_first_and_the_oldest_last() -> None:
    first, second, oldest = FakeConnection(), FakeConnection(), FakeConnection()
    idle = idle_with(first, second)
    idle.add_oldest(oldest)  # type: ignore[arg-type]
    assert [idle.take(1.0) for _ in range(4)] == [second, first, oldest, None]


def test_a_dead_or_old_connection_is_closed_instead_of_taken() -> None:
    good, old, dead = FakeConnection(5.0), FakeConnection(0.0), FakeConnection(5.0, alive=False)
    idle = idle_with(good, old, dead)
    assert idle.take(10.0) is good
    assert old.aborted
    assert dead.aborted
    assert not good.aborted


def test_what_expired_is_closed_and_the_rest_keeps_its_order() -> None:
    a, old, b, dead = FakeConnection(5.0), FakeConnection(0.0), FakeConnection(6.0), FakeConnection(6.0, alive=False)
    idle = idle_with(a, old, b, dead)
    idle.close_expired(10.0)
    assert (old.aborted, dead.aborted, a.aborted, b.aborted) == (True, True, False, False)
    assert [idle.take(10.0), idle.take(10.0)] == [b, a]


def test_only_reusable_connections_are_accepted_and_only_while_there_is_space() -> None:
    idle = idle_with(FakeConnection(), capacity=2)
    assert idle.accepts(FakeConnection())  # type: ignore[arg-type]
    assert not idle.accepts(FakeConnection(reusable=False))  # type: ignore[arg-type]
    idle.add(FakeConnection())  # type: ignore[arg-type]
    assert not idle.accepts(FakeConnection())  # type: ignore[arg-type]


def test_a_lost_connection_is_forgotten_once() -> None:
    lost = FakeConnection()
    idle = idle_with(lost)
    assert idle.discard(lost)  # type: ignore[arg-type]
    assert not idle.discard(lost)  # type: ignore[arg-type]
    assert len(idle) == 0


def test_closing_closes_all() -> None:
    connections = [FakeConnection() for _ in range(3)]
    idle = idle_with(*connections)
    idle.close()
    assert all(connection.aborted for connection in connections)
    assert not idle
