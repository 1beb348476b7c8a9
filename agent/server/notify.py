"""Notifications of the agent's state to systemd, when it expects them."""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

log = logging.getLogger(__name__)


class Notifier:
    """Sends to ``NOTIFY_SOCKET``; does nothing without one."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        watched = environ.get("WATCHDOG_PID") in (None, "", str(os.getpid()))
        text = environ.get("WATCHDOG_USEC", "") if watched else ""
        self.watchdog_seconds = int(text) / 1_000_000 if text.isdigit() and int(text) else None

    def say(self, *lines: str) -> None:
        """Send `lines`, such as ``READY=1``. A manager that does not listen is only logged."""
        if not self._address:
            return
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.connect(address)
                channel.send("\n".join(lines).encode())
        except OSError as error:
            log.warning("the service manager does not listen on %s: %s", self._address, error.strerror)

    async def keep_watchdog(self) -> None:
        """Send a sign of life twice per watchdog period. Return at once without a watchdog."""
        if self.watchdog_seconds is None:
            return
        while True:
            self.say("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_seconds / 2)
