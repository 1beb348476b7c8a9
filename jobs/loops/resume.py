"""Starts what should run and does not: after a machine's reboot, or when the master comes up again.

One start a node at a time, in turn with every other start there. What waits is in the running set of its node, in the
database: it outlives a master that ends in the middle. What failed, and what ended while its machine stayed up, is
never started again by itself: a model that dies is no endless loop.
"""

import structlog
from django.db import transaction

from audit import log as audit_log
from jobs import recovery
from jobs.queries import unfinished
from mirbad.kernel.actor import system
from mirbad.kernel.errors import MirbadError
from models_app import intents
from models_app.models import Placement, RunningIntent
from models_app.placement import apply
from models_app.states import RUNNING, STARTING, STOPPED
from nodes import fencing
from nodes.models import Node

log = structlog.get_logger(__name__)

AUTOSTART = system("autostart")

_WHY = {
    RunningIntent.SEEN: "It ran before its node was restarted.",
    RunningIntent.ASKED: "Its node could not be given the start before.",
    RunningIntent.AUTOSTART: "It is marked to start with the master.",
}


def resume_once() -> int:
    """Open a launch for what waits for one, one a node at a time; how many were opened."""
    opened = 0
    if fencing.is_fenced():
        return opened
    if broken := intents.note_unreadable():
        log.error("the running set of nodes cannot be read; nothing is started there by itself", nodes=sorted(broken))
    busy = _busy_nodes()
    for intent in intents.pending():
        placement = intent.placement
        autostart = intent.cause == RunningIntent.AUTOSTART
        # The shards of one replica start together, or not at all: `replicas` sees to those.
        if placement.shards > 1 or placement.node_id_text in busy or (_is_held(placement) and not autostart):
            continue
        try:
            operation = recovery.launch_again(placement, AUTOSTART, _WHY[intent.cause], even_held=autostart)
        except MirbadError as error:
            log.info("a model that should run waits", model=placement.model_id, code=error.code, reason=error.detail)
            continue
        if operation is None:
            continue
        busy.add(placement.node_id_text)
        opened += 1
        log.info("starting a model that should run", model=placement.model_id, node=placement.node_id_text)
    return opened


def autostart() -> int:
    """The master comes up: models that are marked to start with it are wanted, even if they were stopped; how many.

    They are only marked here, and so is what should run on this machine: the end of the last run stopped it.
    `resume_once` starts each once its node has been seen. A hold does not count here, so that one that was left keeps
    no model down; an operation that is still at work on a model's place does.
    """
    marked = 0
    if fencing.is_fenced():
        return marked
    with transaction.atomic():
        own = Node.objects.filter(is_bootstrap=True).values("pk")
        intents.ask(Placement.objects.filter(desired=RUNNING, node_id_text__in=own), RunningIntent.ASKED)
    rows = Placement.objects.filter(desired=STOPPED, routed=True, model__auto_start=True).order_by("model_id")
    for placement in rows:
        if recovery.is_being_placed(placement.model_id):
            continue
        with transaction.atomic():
            if apply.want_running(placement, ""):
                intents.ask([placement], RunningIntent.AUTOSTART)
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


def _is_held(placement: Placement) -> bool:
    return hasattr(placement.model, "hold")


def _busy_nodes() -> set[str]:
    """Nodes on which a model starts, or has a start or a stop open."""
    starting = Placement.objects.filter(observed=STARTING).values_list("node_id_text", flat=True)
    return set(starting) | set(unfinished().filter(lane="run").values_list("node_id_text", flat=True))
