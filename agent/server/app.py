"""The application: its routes in one literal table, and the state of its handlers. Model traffic is in `relay`."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from agent.config import AgentConfig
from agent.deliveries.pulls import ImagePulls
from agent.downloads import DownloadManager
from agent.fence import Fence
from agent.operations import OperationJournal
from agent.running import EngineInstances
from agent.server import downloads, drain, handlers, images, pki, witness
from agent.server.events import EventBroadcaster
from agent.server.guard import Handler, guard
from agent.server.keys import CONFIG, EVENTS, FENCE, INSTANCES, JOURNAL, OPEN_REQUESTS, REPORTER, ROTATION, TLS, WITNESS
from agent.server.rotation import Rotation
from agent.server.status import Reporter
from agent.server.tls import TlsTerminator
from agent.wire.base import API_PREFIX
from agent.witness import Witness

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/info", handlers.get_info),
    ("GET", "/capabilities", handlers.get_capabilities),
    ("GET", "/status", handlers.get_status),
    ("GET", "/events", handlers.get_events),
    ("PUT", "/fence", handlers.put_fence),
    ("GET", "/operations/{operation_id}", handlers.get_operation),
    ("PUT", "/instances/{instance_id}", handlers.put_instance),
    ("GET", "/instances/{instance_id}", handlers.get_instance),
    ("DELETE", "/instances/{instance_id}", handlers.delete_instance),
    ("POST", "/instances/{instance_id}/stop", handlers.post_stop),
    ("GET", "/instances/{instance_id}/log", handlers.get_log),
    ("GET", "/pki", pki.get_pki),
    ("POST", "/pki/csr", pki.post_csr),
    ("PUT", "/pki/certificate", pki.put_certificate),
    ("DELETE", "/pki/next", pki.delete_next),
    ("PUT", "/pki/trust", pki.put_trust),
    *downloads.ROUTES,
    *images.ROUTES,
    *witness.ROUTES,
    *drain.ROUTES,
)


@dataclass(frozen=True)
class ServerContext:
    """The state that handlers work with."""

    config: AgentConfig
    tls: TlsTerminator
    fence: Fence
    journal: OperationJournal
    instances: EngineInstances
    events: EventBroadcaster
    reporter: Reporter
    rotation: Rotation
    downloads: DownloadManager
    pulls: ImagePulls
    folders_changed: Callable[[], None]
    open_requests: Counter[str]
    witness: Witness


def make_app(context: ServerContext) -> web.Application:
    """Return the application over `context`."""
    app = web.Application(middlewares=[guard])
    app[CONFIG] = context.config
    app[TLS] = context.tls
    app[FENCE] = context.fence
    app[JOURNAL] = context.journal
    app[INSTANCES] = context.instances
    app[OPEN_REQUESTS] = context.open_requests
    app[EVENTS] = context.events
    app[REPORTER] = context.reporter
    app[WITNESS] = context.witness
    app[ROTATION] = context.rotation
    app[downloads.DOWNLOADS] = context.downloads
    app[downloads.CHANGED] = context.folders_changed
    app[images.PULLS] = context.pulls
    for method, path, handler in ROUTES:
        app.router.add_route(method, f"{API_PREFIX}{path}", handler)
    return app
