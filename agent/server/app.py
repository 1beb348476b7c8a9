"""The application: its routes in one literal table, and what its handlers need. Model traffic is in `relay`."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from agent.config import AgentConfig
from agent.deliveries.pulls import Pulls
from agent.downloads import Downloads
from agent.fence import Fence
from agent.operations import Journal
from agent.running import Instances
from agent.server import downloads, handlers, images, pki
from agent.server.events import Hub
from agent.server.guard import Handler, guard
from agent.server.keys import CONFIG, DOOR, FENCE, HUB, INSTANCES, JOURNAL, OPEN_REQUESTS, REPORTER, ROTATION
from agent.server.rotation import Rotation
from agent.server.status import Reporter
from agent.server.tls import Door
from agent.wire.base import API_PREFIX

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
)


@dataclass(frozen=True)
class Parts:
    """What the handlers work with."""

    config: AgentConfig
    door: Door
    fence: Fence
    journal: Journal
    instances: Instances
    hub: Hub
    reporter: Reporter
    rotation: Rotation
    downloads: Downloads
    pulls: Pulls
    folders_changed: Callable[[], None]
    open_requests: Counter[str]


def make_app(parts: Parts) -> web.Application:
    """The application over `parts`."""
    app = web.Application(middlewares=[guard])
    app[CONFIG] = parts.config
    app[DOOR] = parts.door
    app[FENCE] = parts.fence
    app[JOURNAL] = parts.journal
    app[INSTANCES] = parts.instances
    app[OPEN_REQUESTS] = parts.open_requests
    app[HUB] = parts.hub
    app[REPORTER] = parts.reporter
    app[ROTATION] = parts.rotation
    app[downloads.DOWNLOADS] = parts.downloads
    app[downloads.CHANGED] = parts.folders_changed
    app[images.PULLS] = parts.pulls
    for method, path, handler in ROUTES:
        app.router.add_route(method, f"{API_PREFIX}{path}", handler)
    return app
