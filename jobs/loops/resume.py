"""Starts what should run and does not: after a machine's reboot, or when the master comes up again.

Only what is seen stopped is started, never what failed, so a model that dies at start is no endless loop.
"""

import structlog
from django.db import transaction

from audit import log as audit_log
from jobs import requests
from jobs.models import Operation
from mirbad.kernel.actor import system
from mirbad.kernel.errors import MirbadError
from models_app.models import Placement
from models_app.placement import apply
from models_app.states import RUNNING, STARTING, STOPPED
from nodes import fencing
from nodes.models import Node

log = structlog.get_logger(__name__)

AUTOSTART = system("autostart")


def resume_once() -> int:
    """Request a launch for every placement that waits for one, one a node at a time; how many were requested."""
    requested = 0
    if fencing.is_fenced():
        return requested
    for placement in _waiting():
        try:
            requests.start(placement.model_id, AUTOSTART)
        except MirbadError as error:
            log.info("a model that should run waits", model=placement.model_id, code=error.code, reason=error.detail)
            continue
        requested += 1
        log.info("starting a model that should run", model=placement.model_id, node=placement.node_id_text)
    return requested


def autostart() -> int:
    """The master comes up: models that are marked to start with it are wanted, even if they were stopped; how many.

    They are only marked here. `resume_once` starts each once its node has been seen.
    """
    marked = 0
    if fencing.is_fenced():
        return marked
    rows = Placement.objects.filter(desired=STOPPED, model__auto_start=True, model__hold__isnull=True)
    for placement in rows.order_by("model_id"):
        with transaction.atomic():
            if apply.want_running(placement, ""):
                marked += 1
                audit_log.record(
                    "model.start",
                    AUTOSTART,
                    node_id=placement.node_id_text,
                    model_id=placement.model_id,
                    result="accepted",
                    detail="It is marked to start with the master.",
                )
    return marked


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
