"""A gateway with Django beside it, or an agent's relay, as a process of its own, with a given routing table.

``python -m tests.bench.gateway.master gateway PROTOCOL PORT UPSTREAM_PORT [FOLDER]`` and
``python -m tests.bench.gateway.master relay PORT ENGINE_PORT FOLDER``. A folder holds the files of mutual TLS.
"""

import asyncio
import gc
import os
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvloop

from agent.running import EngineTarget
from agent.server.relay import Relay
from tests.bench.gateway.trust import NAME, SECRET


class Instances:
    """One ready engine."""

    def __init__(self, port: int) -> None:
        self._target = EngineTarget("127.0.0.1", port, "engine-key", "m", 1)
        self._view = SimpleNamespace(model_id="m", generation=1)

    def view(self, instance_id: str) -> Any:
        return self._view

    def target(self, instance_id: str) -> EngineTarget:
        return self._target


async def relay(port: int, engine_port: int, folder: str) -> None:
    """Serve as the second hop: the agent's relay."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=Path(folder) / "ca.pem")
    context.load_cert_chain(Path(folder) / "node.pem", Path(folder) / "node.key")
    context.verify_mode = ssl.CERT_REQUIRED
    serving = Relay(Instances(engine_port), lambda _: None, asyncio.Protocol, keep_alive_seconds=600)
    server = await asyncio.get_running_loop().create_server(serving.protocol, "127.0.0.1", port, ssl=context)
    gc.freeze()  # as `agent.server.serve` does
    await server.serve_forever()


class FixedTable:
    """The source and the sink of a gateway whose routing table never changes."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def read(self, known: int | None) -> Any:
        return None if known == self._table.version else self._table

    def write(self, used: set[int], sums: Mapping[Any, Any]) -> None:
        pass

    def close(self) -> None:
        pass


def _table(upstream_port: int, folder: str) -> FixedTable:
    """Return one key, one model and one node, which is reached by mutual TLS if there is a folder."""
    from models_app.gateway.table import KeyEntry, ModelEntry, NodeState, RouteEntry, RouteState, RoutingTable
    from models_app.keys import digest
    from nodes.link.transport import Endpoint

    context = None
    if folder:
        context = ssl.create_default_context(cafile=Path(folder) / "ca.pem")
        context.load_cert_chain(Path(folder) / "master.pem", Path(folder) / "master.key")
    end = Endpoint("n", "127.0.0.1", upstream_port, NAME, context, loopback_allowed=True)  # type: ignore[arg-type]
    route = RouteEntry("p1", "m", "n", 1, RouteState.READY)
    return FixedTable(
        RoutingTable(
            version=1,
            keys={digest(SECRET): KeyEntry(1, "bench", None, None)},
            models={"m": ModelEntry("m", ("m",), 1700000000, 60.0, 60.0, 0.0, (route,))},
            nodes={"n": NodeState.SERVING},
            endpoints={"n": end},
        )
    )


async def gateway(protocol: str, port: int, upstream_port: int, folder: str = "") -> None:
    """Serve as the first hop: the gateway inside uvicorn, with all of Django beside it."""
    import uvicorn
    from django.core.asgi import get_asgi_application

    django = get_asgi_application()
    from models_app.gateway import metrics
    from models_app.gateway.protocol import V1ProtocolFactory
    from models_app.gateway.service import Gateway, GatewayOptions

    fixed = _table(upstream_port, folder)
    core = Gateway(GatewayOptions(64 * 1024 * 1024, 4096), source=fixed, sink=fixed)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/metrics":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": metrics.render()})
        elif scope["type"] == "http":
            await (core if scope["path"].startswith("/v1/") else django)(scope, receive, send)

    await core.start()
    gc.freeze()  # as `mirbad.asgi` does
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        lifespan="off",
        access_log=False,
        log_level="warning",
        backlog=2048,
        http=V1ProtocolFactory(core.serve) if protocol == "fast" else "httptools",  # type: ignore[arg-type]
    )
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mirbad.settings")
    what, *rest = sys.argv[1:]
    if what == "relay":
        uvloop.run(relay(int(rest[0]), int(rest[1]), rest[2]))
    else:
        uvloop.run(gateway(rest[0], int(rest[1]), int(rest[2]), *rest[3:]))
