"""Invalidations: messages that something changed, so that open pages reload it. They carry no data and may be lost."""

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from channels.exceptions import ChannelFull
from channels.layers import get_channel_layer
from django.conf import settings
from redis.exceptions import RedisError

Topic = Literal["nodes", "models", "operations", "keys", "audit", "processes"]
TOPICS: frozenset[str] = frozenset({"nodes", "models", "operations", "keys", "audit", "processes"})
GROUP = "invalidations"
SEND_TIMEOUT_SECONDS = 1.0
WAITING_LIMIT = 2000
MESSAGE_LIMIT = 500

_log = logging.getLogger(__name__)


def message_of(changes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the message to the group that reports `changes`, pairs of topic and row."""
    return {"type": "invalidations", "changed": [list(pair) for pair in changes]}


def topics_in(message: Mapping[str, Any]) -> set[str]:
    """Return the topics that a message from the group reports."""
    return {topic for topic, _ in message["changed"]}


class _Sender:
    """One daemon thread and one event loop per process; equal invalidations that wait are sent once."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._waiting: dict[tuple[str, str], None] = {}
        self._changed = threading.Condition()
        self._sending = False
        self._broken = False
        threading.Thread(target=self._run, name="live-invalidations", daemon=True).start()

    def put(self, topic: str, subject: str) -> None:
        with self._changed:
            if len(self._waiting) < WAITING_LIMIT:
                self._waiting[topic, subject] = None
                self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until nothing is left to send; return whether it was in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._sending, timeout_seconds)

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._waiting))
                    batch, self._waiting = list(self._waiting), {}
                    self._sending = True
                runner.run(self._send(batch))
                with self._changed:
                    self._sending = False
                    self._changed.notify_all()

    async def _send(self, batch: list[tuple[str, str]]) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                layer = get_channel_layer()
                for start in range(0, len(batch), MESSAGE_LIMIT):
                    await layer.group_send(GROUP, message_of(batch[start : start + MESSAGE_LIMIT]))
        except (OSError, TimeoutError, RedisError, ChannelFull) as error:
            # Once per outage: the broker's own loss is reported by its other users.
            if not self._broken:
                _log.warning("invalidations cannot be sent; pages catch up at their next poll: %r", error)
            self._broken = True
        except Exception:  # noqa: BLE001 - the edge of the sending loop; the thread lives on
            _log.exception("invalidations were lost by an unexpected error")
        else:
            self._broken = False


_lock = threading.Lock()
_sender: _Sender | None = None


def changed(topic: Topic, subject: str = "") -> None:
    """Report that the row `subject` of `topic` changed. Call it after the commit.

    Returns at once, from any thread, inside an event loop or not; never raises and never waits for the broker. Without
    a broker (``REDIS_URL`` empty) there is no other process, and pages catch up by polling.
    """
    global _sender  # noqa: PLW0603 - one sender a process, made again after a fork
    if not settings.REDIS_URL:
        return
    sender = _sender
    if sender is None or sender.pid != os.getpid():
        with _lock:
            if _sender is None or _sender.pid != os.getpid():
                _sender = _Sender()
            sender = _sender
    sender.put(topic, subject)


def changed_many(topic: Topic, subjects: Iterable[str]) -> None:
    """Report `changed` for each of `subjects`."""
    for subject in subjects:
        changed(topic, subject)


def flush(timeout_seconds: float = SEND_TIMEOUT_SECONDS) -> bool:
    """Wait until the invalidations of this process are sent; False when they were not within the time."""
    sender = _sender
    return sender is None or sender.pid != os.getpid() or sender.flush(timeout_seconds)


atexit.register(flush)
