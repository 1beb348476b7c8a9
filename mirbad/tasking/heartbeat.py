"""Heartbeats of the master's processes: a Redis key with a life of 15 seconds each, renewed by a thread.

The thread trims the heap of its process, too.
"""

import os
import socket
import threading
import time
from collections.abc import Callable

import redis
import structlog

from agent.common import heap
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Unavailable

log = structlog.get_logger(__name__)

LIFE_SECONDS = 15
_PERIOD_SECONDS = 4.0
_PREFIX = "mirbad:process:"
PROCESSES = ("web", "enroll", "watcher", "worker", "beat", "up")


def connect() -> redis.Redis:
    """Return a client of the broker with short time-outs. Raises Unavailable when no broker is configured."""
    url = settings().redis_url
    if not url:
        raise Unavailable("No broker is configured: MIRBAD_REDIS_URL is empty.")
    return redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)


class Heartbeat:
    """The thread that renews one process's key until `stop`. `healthy` returns False when the process is stuck."""

    def __init__(self, process: str, healthy: Callable[[], bool] | None = None) -> None:
        self._process = process
        self._healthy = healthy
        self._sign = f"{socket.gethostname()}:{os.getpid()}"
        self._stopped = threading.Event()
        self._silent = False
        self._thread = threading.Thread(target=self._run, name=f"heartbeat-{process}", daemon=True)

    def start(self) -> None:
        """Start; the first heartbeat follows at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and delete the key so that the end of the process is observed without delay."""
        self._stopped.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        client = connect()
        key = f"{_PREFIX}{self._process}"
        trimmed = time.monotonic()
        while True:
            self._renew(client, key)
            if time.monotonic() - trimmed >= heap.TRIM_EVERY_SECONDS:
                heap.trim()
                trimmed = time.monotonic()
            if self._stopped.wait(_PERIOD_SECONDS):
                break
        try:
            if client.get(key) == self._sign.encode():  # another process of the same kind may still run
                client.delete(key)
        except redis.RedisError:
            log.debug("the broker was gone before the heartbeat stopped", process=self._process)
        client.close()

    def _renew(self, client: redis.Redis, key: str) -> None:
        if self._healthy is not None and not self._healthy():
            return
        try:
            client.set(key, self._sign, ex=LIFE_SECONDS)
            self._silent = False
        except redis.RedisError as error:
            if not self._silent:
                log.warning("heartbeat not sent: the broker is unreachable", error=str(error))
            self._silent = True


def start(process: str, healthy: Callable[[], bool] | None = None) -> Heartbeat | None:
    """Send heartbeats of this process under `process` (one of PROCESSES). None when no broker is configured."""
    if not settings().redis_url:
        log.info("no heartbeat: MIRBAD_REDIS_URL is empty", process=process)
        return None
    beat = Heartbeat(process, healthy)
    beat.start()
    return beat


def alive() -> dict[str, float]:
    """Return the seconds since each process's last heartbeat, for heartbeats not older than LIFE_SECONDS.

    Ages come from the key's remaining life, so hosts need no common clock. Raises Unavailable without a broker.
    """
    try:
        client = connect()
        with client.pipeline(transaction=False) as pipe:
            for process in PROCESSES:
                pipe.pttl(f"{_PREFIX}{process}")
            lives = pipe.execute()
        client.close()
    except redis.RedisError as error:
        raise Unavailable(f"The broker is unreachable: {error}") from error
    return {
        process: round(max(0.0, LIFE_SECONDS - left / 1000), 1)
        for process, left in zip(PROCESSES, lives, strict=True)
        if left > 0
    }
