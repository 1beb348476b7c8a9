"""``manage.py enroll_listener``: serve the enroll listener until SIGTERM."""

import asyncio
import signal
from typing import Any

import structlog
from django.core.management.base import BaseCommand, CommandError

from mirbad.kernel import logs
from mirbad.kernel.conf import Settings, settings
from mirbad.kernel.errors import MirbadError
from mirbad.tasking import heartbeat
from nodes.enrollment.listener import EnrollListener
from nodes.pki.tls import BrokenIdentity

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    """Serves enrollment on MIRBAD_ENROLL_PORT."""

    help = "Serve the enroll listener (TLS, POST /enroll and /enroll/rekey)."

    def handle(self, *args: Any, **options: Any) -> None:
        """Serve until SIGTERM or SIGINT."""
        logs.configure("enroll")
        try:
            asyncio.run(_serve())
        except MirbadError as error:
            raise CommandError(error.detail) from error
        except BrokenIdentity as error:
            raise CommandError(f"The stored enroll certificate does not work: {error}") from error


async def _serve() -> None:
    configured = settings()
    listener = EnrollListener(configured)
    try:
        await _serve_until_signal(listener, configured)
    except OSError as error:
        raise CommandError(
            f"Port {configured.enroll_port} on {configured.bind} cannot be used ({error.strerror}). Free it or set "
            "MIRBAD_ENROLL_PORT."
        ) from error
    finally:
        await listener.stop()


async def _serve_until_signal(listener: EnrollListener, configured: Settings) -> None:
    await listener.start()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    beat = heartbeat.start("enroll")
    log.info("enroll listener started", bind=configured.bind, port=configured.enroll_port)
    try:
        await ended.wait()
    finally:
        if beat is not None:
            await asyncio.to_thread(beat.stop)
        log.info("enroll listener stopping")
