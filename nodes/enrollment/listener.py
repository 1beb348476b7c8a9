"""The enroll listener: TLS on 8443, ``POST /enroll`` and ``POST /enroll/rekey``, and nothing else.

Open to machines that nobody knows yet, so every resource a stranger could use up has a limit: handshakes, bytes,
requests a minute, the life of a connection.
"""

import asyncio
import logging
import math
import ssl
from dataclasses import dataclass

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler
from django.db import DatabaseError

from agent.common import listening
from agent.wire.base import ENROLL_SERVER_NAME, WireModel
from agent.wire.enroll import EnrollErrorBody
from mirbad.kernel import clock
from mirbad.kernel.conf import Settings
from mirbad.kernel.errors import InvalidRequest, MirbadError
from nodes.enrollment import join
from nodes.enrollment.body import read_enroll_request
from nodes.enrollment.limits import EnrollLimiter
from nodes.errors import EnrollmentRefused, RateLimited
from nodes.link.threads import DatabaseThreads
from nodes.pki import authority, store
from nodes.pki.tls import BrokenIdentity, SwappingContext, TlsIdentity, prove, server_context

log = structlog.get_logger(__name__)


class _NoiseFilter(logging.Filter):
    """A log filter: a peer that speaks no HTTP gets its 400, and writes no traceback to the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_server_log = logging.getLogger("nodes.enrollment.http")
_server_log.addFilter(_NoiseFilter())

BODY_LIMIT = 65_536
HANDSHAKE_SECONDS = 3.0
CONNECTION_SECONDS = 20.0
BODY_SECONDS = 10.0
WATCH_SECONDS = 1.0
_ROUTES = {"/enroll": False, "/enroll/rekey": True}
_THREADS = 4


@dataclass(frozen=True, slots=True)
class _Shown:
    """The certificate that the listener presents now, to notice a change."""

    identity: TlsIdentity
    leads: tuple[str, ...]


class EnrollListener:
    """One listener. `start` binds and serves until `stop`."""

    def __init__(self, configured: Settings) -> None:
        self._bind, self._port = configured.bind, configured.enroll_port
        self._limiter = EnrollLimiter(
            configured.enroll_rate_per_minute, configured.enroll_global_rate_per_minute, clock.monotonic
        )
        self._threads = DatabaseThreads(_THREADS, "enroll")
        self._shown: _Shown | None = None
        self._front: SwappingContext | None = None
        self._server: asyncio.Server | None = None
        self._web: web.Server | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that is bound."""
        assert self._server is not None  # noqa: S101 - asked of a listener that was never started
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Bind and serve. Raises OSError when the port is in use, BrokenIdentity when the stored certificate does not
        work.
        """
        shown = await self._threads.run(_read)
        self._shown, self._front = shown, SwappingContext(_proven(shown))
        self._web = web.Server(
            self._answer,
            keepalive_timeout=5.0,
            lingering_time=1.0,
            auto_decompress=False,
            access_log=None,
            logger=_server_log,
        )
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            self._connection,
            listening.host_of(self._bind),
            self._port,
            ssl=self._front.context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            backlog=256,
        )
        self._watch = asyncio.create_task(self._follow_identity())

    async def stop(self) -> None:
        """Accept no new connection, finish open requests, and close."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        if self._web is not None:
            await self._web.shutdown(BODY_SECONDS)
        await asyncio.to_thread(self._threads.end)

    async def refresh_identity(self) -> bool:
        """Present the stored certificate if it has changed; return whether it was swapped.

        A certificate that does not work is not presented: the working one stays, and the log has an alarm.
        """
        shown = await self._threads.run(_read)
        if shown == self._shown:
            return False
        assert self._front is not None  # noqa: S101 - `start` came first
        try:
            self._front.swap(_proven(shown))
        except BrokenIdentity as error:
            log.error("the new enroll certificate does not work; keeping the old one", why=str(error), alarm=True)
            return False
        self._shown = shown
        log.info("swapped the enroll certificate")
        return True

    async def _follow_identity(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                await self.refresh_identity()
            except (DatabaseError, MirbadError, ssl.SSLError) as error:
                log.warning("the enroll certificate could not be reloaded", why=str(error))

    def _connection(self) -> RequestHandler:
        assert self._web is not None  # noqa: S101 - connections come after `start`
        handler = self._web()
        # A whole enrollment takes far less; a peer that is still connected only holds a slot.
        asyncio.get_running_loop().call_later(CONNECTION_SECONDS, _end, handler)
        return handler

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        rekey = _ROUTES.get(request.path)
        if rekey is None or request.method != "POST":
            return _refusal(404, "not_found", "This port serves enrollment only.")
        peer = _peer(request)
        try:
            if wait := self._limiter.admit(peer):
                seconds = math.ceil(wait)
                raise RateLimited(f"Too many enrollments. Try again in {seconds} s.", retry_after_seconds=seconds)
            message = read_enroll_request(await _read_body(request))
            answer = await self._threads.run(lambda: join.enroll(message, peer, rekey=rekey))
        except _TooLarge:
            return _refusal(413, "payload_too_large", f"The body exceeds {BODY_LIMIT} bytes.", close=True)
        except MirbadError as error:
            return _refused(error)
        except DatabaseError as error:
            log.error("the database refused an enrollment", why=str(error))
            return _refusal(503, "unavailable", "The master cannot enroll nodes now. Try again.", retry_after=5)
        except Exception:  # the edge of the listener: a stranger learns nothing, the log has the traceback
            log.exception("an enrollment failed unexpectedly", peer=peer)
            return _refusal(503, "unavailable", "The master cannot enroll nodes now. Try again.", retry_after=30)
        return _json(200, answer)


class _TooLarge(Exception):
    """The body has more bytes than an enrollment can need."""


async def _read_body(request: web.BaseRequest) -> bytes:
    if (request.content_length or 0) > BODY_LIMIT:
        raise _TooLarge
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > BODY_LIMIT:
                    raise _TooLarge
    except TimeoutError:
        raise InvalidRequest("The body did not arrive in time.") from None
    return bytes(body)


def _refused(error: MirbadError) -> web.Response:
    if isinstance(error, RateLimited):
        return _refusal(429, "rate_limited", error.detail, retry_after=error.retry_after_seconds)
    if isinstance(error, EnrollmentRefused):
        return _refusal(403, "enrollment_refused", error.detail)
    if isinstance(error, InvalidRequest):
        return _refusal(400, "invalid_request", error.detail)
    log.error("enrollment is not possible", code=error.code, why=error.detail)
    return _refusal(503, "unavailable", "The master cannot enroll nodes now; its log says why.", retry_after=30)


def _refusal(
    status: int, code: str, detail: str, *, retry_after: int | None = None, close: bool = False
) -> web.Response:
    response = _json(status, EnrollErrorBody.model_validate({"code": code, "detail": detail}))
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    if close:
        response.force_close()
    return response


def _json(status: int, message: WireModel) -> web.Response:
    return web.Response(
        status=status,
        body=message.model_dump_json(by_alias=True).encode(),
        content_type="application/json",
        headers={"Cache-Control": "no-store", "Server": "mirbad"},
    )


def _peer(request: web.BaseRequest) -> str:
    """Return the address at the other end of the socket; headers are never trusted."""
    name = request.transport.get_extra_info("peername") if request.transport is not None else None
    return str(name[0]).removeprefix("::ffff:") if name else "unknown"


def _end(handler: RequestHandler) -> None:
    if handler.transport is not None:
        handler.transport.abort()


def _read() -> _Shown:
    row = authority.ensure_for_listener()
    trust = store.trust()
    return _Shown(store.enroll_identity(row, trust.bundle), trust.leads)


def _proven(shown: _Shown) -> ssl.SSLContext:
    context = server_context(shown.identity)
    prove(context, shown.leads, ENROLL_SERVER_NAME)
    return context
