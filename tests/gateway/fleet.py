"""A node and a gateway for tests: the real relay over mutual TLS, the real protocol in uvicorn, a given table."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, TypeVar

import uvicorn
import uvloop
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from agent.common.http1.sockets import SocketLimit
from agent.common.tls_pins import spki_sha256
from agent.errors import AgentError
from agent.running import EngineTarget
from agent.server.guard import refusal
from agent.server.relay import Relay
from agent.wire.base import API_PREFIX, node_server_name
from agent.wire.errors import AgentCode
from mirbad.web.connection import PageConnection
from mirbad.web.refusals import Refusals
from models_app import keys
from models_app.gateway import refusals
from models_app.gateway.access import AccessLog
from models_app.gateway.metrics import GatewayMetrics
from models_app.gateway.protocol import V1ProtocolFactory
from models_app.gateway.service import Gateway, GatewayOptions
from models_app.gateway.table import KeyEntry, ModelEntry, NodeState, RouteEntry, RouteState, RoutingTable
from models_app.usage import Sums
from nodes.link.transport import Endpoint, client_context
from nodes.pki import certs
from nodes.pki.tls import TlsIdentity, server_context
from tests.gateway.engine import Engine
from tests.waiting import pause_async, until_async, until_still

T = TypeVar("T")
UID = "6f1f0c1e-52a1-4b8e-9df4-0d6ef2a0a001"
SECRET = "ssk_" + "a" * 43
NARROW_SECRET = "ssk_" + "b" * 43
EXPIRED_SECRET = "ssk_" + "c" * 43
ENGINE_KEY = "the engine's own key"


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class Trust:
    """A CA, one node's server side and the master's client side."""

    def __init__(self) -> None:
        now = datetime.now(UTC)
        ca_key, node_key, master_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
        ca = certs.make_ca(ca_key, now)
        issuer = certs.Issuer(ca, ca_key)
        node = certs.issue_node(issuer, node_key.public_key(), UID, now)
        master = certs.issue_master_client(issuer, master_key.public_key(), now)
        self.bundle = (certs.to_pem(ca),)
        self.server = server_context(TlsIdentity((certs.to_pem(node),), _pem(node_key)))
        self.server.verify_mode = ssl.CERT_REQUIRED
        self.server.load_verify_locations(cadata="".join(self.bundle))
        self.pins = frozenset({spki_sha256(node.public_bytes(Encoding.DER))})
        self.identity = TlsIdentity((certs.to_pem(master),), _pem(master_key))
        self.client = client_context(self.identity, self.bundle, self.pins)


class Instances:
    """The agent's engines as the relay sees them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.restore()

    def restore(self) -> None:
        """Hold one ready instance `p1`, whose engine listens where it does."""
        self.port: int | None = None
        self.ready, self.generation, self.known = True, 1, {"p1"}
        self.closes_after_stream = False

    def view(self, instance_id: str) -> Any:
        if instance_id not in self.known:
            raise AgentError(AgentCode.NOT_FOUND, "no such instance")
        return SimpleNamespace(model_id="m", generation=self.generation)

    def target(self, instance_id: str) -> EngineTarget:
        if not self.ready:
            raise AgentError(AgentCode.NOT_READY, "the engine is not ready")
        port = self.port or self.engine.port
        return EngineTarget("127.0.0.1", port, ENGINE_KEY, "m", self.generation, self.closes_after_stream)


@web.middleware
async def _refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        return await handler(request)
    except AgentError as error:
        return refusal(error)


async def _info(request: web.Request) -> web.Response:
    return web.json_response({"info": True})


class Node:
    """The agent's side: the relay behind mutual TLS, and the engine behind the relay."""

    def __init__(self, trust: Trust) -> None:
        self.trust = trust
        self.engine = Engine()
        self.instances = Instances(self.engine)
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        await self.engine.start()
        app = web.Application(middlewares=[_refusals])
        app.router.add_get(f"{API_PREFIX}/info", _info)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        assert self._runner.server is not None
        self.relay = Relay(self.instances, lambda _: None, self._runner.server, keep_alive_seconds=600)
        await self.listen()

    async def listen(self) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        self._server = await asyncio.get_running_loop().create_server(
            self.relay.protocol, "127.0.0.1", self.port, ssl=self.trust.server, ssl_handshake_timeout=3
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def deafen(self) -> None:
        """Stop listening and cut every connection, as a machine does that loses its power."""
        assert self._server is not None
        assert self._runner is not None
        assert self._runner.server is not None
        self._server.close()
        for _ in range(20):  # a connection may be in its handshake now and stand in a moment
            self.relay.cut()
            await pause_async(0.01)

    async def stop(self) -> None:
        assert self._server is not None
        assert self._runner is not None
        self._server.close()
        await self.relay.drain(0.2)
        await self._runner.cleanup()
        await self.engine.stop()


def model(state: RouteState = RouteState.READY, **changes: Any) -> ModelEntry:
    route = RouteEntry("p1", "m", "n1", 1, state)
    plain = ModelEntry("m", ("m", "org/m"), 1700000000, 5.0, 5.0, 0.0, (route,))
    return replace(plain, **changes)


class Fleet:
    """One node and one gateway in a thread of their own; tests talk to `port` and decide the table."""

    def __init__(self, *, max_body_bytes: int = 1024 * 1024, max_in_flight: int = 32, protocol: str = "fast") -> None:
        self.grace_seconds = 1
        self.protocol = protocol
        self.trust = Trust()
        self.node = Node(self.trust)
        self.metrics = GatewayMetrics()
        self.loop = uvloop.new_event_loop()
        self.options = GatewayOptions(max_body_bytes, max_in_flight)
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._ready = threading.Event()
        self._server: uvicorn.Server | None = None
        self.gateway: Gateway = None  # type: ignore[assignment]
        self.port = 0
        self._table = RoutingTable()
        self.used: set[int] = set()
        self.sums: dict[Any, Any] = {}
        self.access: AccessLog | None = None
        self.sockets = SocketLimit(5000)
        self.refusals = Refusals(refusals.response)
        self.pages_seen: list[bytes] = []

    @property
    def engine(self) -> Engine:
        return self.node.engine

    @property
    def instances(self) -> Instances:
        return self.node.instances

    def endpoint(self) -> Endpoint:
        return Endpoint(
            "n1", "127.0.0.1", self.node.port, node_server_name(UID), self.trust.client, loopback_allowed=True
        )

    def table(self, *models: ModelEntry, state: NodeState = NodeState.SERVING, **changes: Any) -> None:
        """Let the gateway route by this table from now on."""
        served = models or (model(),)
        plain = RoutingTable(
            version=self._table.version + 1,
            keys={
                keys.digest(SECRET): KeyEntry(1, "test", None, None),
                keys.digest(NARROW_SECRET): KeyEntry(2, "narrow", frozenset({"other"}), None),
                keys.digest(EXPIRED_SECRET): KeyEntry(3, "expired", None, datetime(2020, 1, 1, tzinfo=UTC)),
            },
            models={name: m for m in served for name in m.names},
            nodes={"n1": state},
            endpoints={"n1": self.endpoint()},
        )
        self._table = replace(plain, **changes)
        self.run(self.gateway.loader.step())

    def start(self) -> "Fleet":
        self._thread.start()
        assert self._ready.wait(20)
        self.table()
        return self

    def stop(self) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()

    def run(self, work: Awaitable[T]) -> T:
        """Run a coroutine in the fleet's loop."""

        async def awaited() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result(20)

    def signal(self, event: asyncio.Event) -> None:
        """Set an event that a script of the engine waits for."""
        self.loop.call_soon_threadsafe(event.set)

    def wait_until_stalled(self, sent: Any, seconds: float = 10.0) -> int:
        """Wait until `sent()` bytes do not grow for 0.3 s, and return them: every buffer on the way is full."""
        return until_still(sent, seconds)

    def wait_for(self, true: Any, seconds: float) -> bool:
        """Return whether `true()` holds within `seconds`, checked in the fleet's loop."""

        async def look() -> bool:
            try:
                await until_async(true, "", seconds, every=0.01)
            except AssertionError:
                return False
            return True

        return self.run(look())

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._main())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    async def _main(self) -> None:
        await self.node.start()
        self.gateway = Gateway(self.options, metrics=self.metrics, source=self, sink=self, access=self.access)
        front = {"http": V1ProtocolFactory(self.gateway.serve, self.sockets) if self.protocol == "fast" else self._page}
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            lifespan="on",
            timeout_graceful_shutdown=self.grace_seconds,
            interface="asgi3",
            ws="websockets-sansio",
            **front,
        )
        self._server = uvicorn.Server(config)
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        await self._server.serve(sockets=[listening])
        await self.node.stop()

    # The source of the gateway's table

    def read(self, known: int | None) -> RoutingTable | None:
        return None if known == self._table.version else self._table

    def write(self, used: set[int], sums: dict[Any, Any]) -> None:
        self.used |= used
        for place, more in sums.items():
            kept = self.sums.setdefault(place, Sums())
            for name in ("requests", "failed", "unreported", "prompt_tokens", "completion_tokens"):
                setattr(kept, name, getattr(kept, name) + getattr(more, name))

    def close(self) -> None:
        pass

    def _page(self, **parts: Any) -> asyncio.Protocol:
        return PageConnection(**parts, sockets=self.sockets, refusals=self.refusals)

    async def _echo(self, receive: Any, send: Any) -> None:
        """Serve in the place of Django: the length of the body, after the page's pause."""
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        self.pages_seen.append(body)
        await self.page_pause()
        text = b"%d" % len(body)
        headers = [(b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    async def page_pause(self) -> None:
        """Wait before a page answers; a test may replace it."""

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/pages/"):
            await self._echo(receive, send)
            return
        if scope["type"] == "http":
            await self.gateway(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            while (await receive())["type"] != "websocket.disconnect":
                pass
            return
        await receive()
        await self.gateway.start()
        await send({"type": "lifespan.startup.complete"})
        self._ready.set()
        await receive()
        await self.gateway.stop()
        await send({"type": "lifespan.shutdown.complete"})
