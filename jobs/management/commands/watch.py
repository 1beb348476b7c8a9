"""``manage.py watch``: the watcher as a process of its own."""

import asyncio
import gc
import signal
from typing import Any

from django.core.management.base import BaseCommand

from jobs.loops.watch import Watcher
from mirbad.kernel import files, logs
from mirbad.tasking import heartbeat


async def _watch() -> None:
    watcher = Watcher()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, watcher.stop)
    beat = heartbeat.start("watcher", watcher.is_healthy)
    try:
        await watcher.run()
    finally:
        if beat is not None:
            beat.stop()


class Command(BaseCommand):
    """Watch every node until SIGINT or SIGTERM."""

    help = "Hold an event stream to every node and record reports. One watcher is active; others wait."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until SIGINT or SIGTERM."""
        logs.configure("watcher")
        files.allow_many()
        # Imported modules stay: full collections need not scan them while every stream waits.
        gc.freeze()
        asyncio.run(_watch())
