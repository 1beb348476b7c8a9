"""Idle connections to one peer: the freshest is used first, the oldest is closed first."""

from agent.common.http1.client import ClientConnection


class IdleConnections:
    """Connections that wait for a request, at most `capacity`, each for at most `idle_seconds`."""

    __slots__ = ("_capacity", "_idle_seconds", "_waiting")

    def __init__(self, *, idle_seconds: float, capacity: int) -> None:
        self._idle_seconds = idle_seconds
        self._capacity = capacity
        self._waiting: list[ClientConnection] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, now: float) -> ClientConnection | None:
        """Return the freshest usable connection, None without one. `now` is the loop's time."""
        waiting = self._waiting
        while waiting:
            connection = waiting.pop()
            if connection.alive and now - connection.idle_since < self._idle_seconds:
                return connection
            connection.abort()
        return None

    def accepts(self, connection: ClientConnection) -> bool:
        """Return whether a connection whose response has ended may be kept: it is reusable, and there is space."""
        return connection.reusable and len(self._waiting) < self._capacity

    def add(self, connection: ClientConnection) -> None:
        """Keep an idle connection as the freshest."""
        self._waiting.append(connection)

    def add_oldest(self, connection: ClientConnection) -> None:
        """Keep an idle connection as the last that is used."""
        self._waiting.insert(0, connection)

    def discard(self, connection: ClientConnection) -> bool:
        """Forget a connection that was lost. Return whether it was idle."""
        if connection not in self._waiting:
            return False
        self._waiting.remove(connection)
        return True

    def close_expired(self, now: float) -> None:
        """Close the connections that are closed on the other side or have been idle for too long."""
        kept = []
        for connection in self._waiting:
            if connection.alive and now - connection.idle_since < self._idle_seconds:
                kept.append(connection)
            else:
                connection.abort()
        self._waiting = kept

    def close(self) -> None:
        """Close all."""
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            connection.abort()
