"""Starts what should run and does not: after a machine's reboot, or when the master comes up again.

Only what is seen stopped is started, never what failed, so a model that dies at start is no endless loop.
"""

import structlog

from jobs import requests
from jobs.models import Operation
from mirbad.kernel.actor import system
from mirbad.kernel.errors import MirbadError
from models_app.models import Placement
from models_app.states import RUNNING, STARTING, STOPPED
from nodes.models import Node

log = structlog.get_logger(__name__)

AUTOSTART = system("autostart")


def resume_once() -> int:
    """Request a launch for every placement that waits for one, one a node at a time; how many were requested."""
    requested = 0
    for placement in _waiting():
        try:
            requests.start(placement.model_id, AUTOSTART)
        except MirbadError as error:
            log.info("a model that should run waits", model=placement.model_id, code=error.code, reason=error.detail)
            continue
        requested += 1
        log.info("starting a model that should run", model=placement.model_id, node=placement.node_id_text)
    return requested


def _waiting() -> list[Placement]:
    serving = set(Node.objects.serving().filter(draining=False).values_list("pk", flat=True))
    starting = Placement.objects.filter(observed=STARTING).values_list("node_id_text", flat=True)
    launching = Operation.objects.filter(finished_at__isnull=True, lane="run")
    busy_nodes = set(starting) | set(launching.values_list("node_id_text", flat=True))
    rows = Placement.objects.filter(
        desired=RUNNING, observed=STOPPED, node_id_text__in=serving - busy_nodes, model__hold__isnull=True
    ).order_by("node_id_text", "created_at")
    first: dict[str, Placement] = {}
    for placement in rows:
        first.setdefault(placement.node_id_text, placement)
    return list(first.values())
