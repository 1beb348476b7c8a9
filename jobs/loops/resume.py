"""Starts models that should run and do not: after a reboot of their machine, or when the master starts.

One start per node at a time, in turn with every other start there. The queue is the running set of each node, in the
database: it survives a master that ends in the middle. An engine that ended while its machine stayed up is left to
`restarts`, which counts.
"""

import structlog
from django.db import transaction

from agent.wire.instances import InstanceState
from audit import log as audit_log
from jobs.queries import busy_nodes
from jobs.requests import recovery
from mirbad.kernel.actor import system
from mirbad.kernel.errors import MirbadError
from models_app import intents
from models_app.models import Placement, RunningIntent
from models_app.placement import apply
from models_app.states import RUNNING, STOPPED
from nodes import fencing
from nodes.models import Node

log = structlog.get_logger(__name__)

AUTOSTART = system("autostart")

_WHY = {
    RunningIntent.SEEN: "It ran before its node was restarted.",
    RunningIntent.ASKED: "Its node was not reachable for the start before.",
    RunningIntent.AUTOSTART: "It is marked to start with the master.",
}


def resume_once() -> int:
    """Open a launch for each waiting model, one per node at a time, and return how many."""
    opened = 0
    if fencing.is_fenced():
        return opened
    if broken := intents.note_unreadable():
        log.error("the running set of nodes cannot be read; nothing starts there automatically", nodes=sorted(broken))
    busy = busy_nodes()
    for intent in intents.pending():
        placement = intent.placement
        autostart = intent.cause == RunningIntent.AUTOSTART
        # The shards of one replica start together, or not at all: `replicas` starts those.
        if placement.shards > 1 or placement.node_id_text in busy or (_is_held(placement) and not autostart):
            continue
        try:
            operation = recovery.launch_again(placement, AUTOSTART, _why(intent), even_held=autostart)
        except MirbadError as error:
            log.info("a model that should run waits", model=placement.model_id, code=error.code, reason=error.detail)
            continue
        if operation is None:
            continue
        busy.add(placement.node_id_text)
        opened += 1
        log.info("starting a model that should run", model=placement.model_id, node=placement.node_id_text)
    return opened


def _why(intent: RunningIntent) -> str:
    """Return why a model starts; an engine that was lost says it itself."""
    placement = intent.placement
    lost = placement.observed_view.get("state") == InstanceState.LOST.value
    return placement.observed_reason or _WHY[intent.cause] if lost else _WHY[intent.cause]


def autostart() -> int:
    """Set models that start with the master to desired running, even if they were stopped; return how many.

    They are only marked here, and so are models that should run on this machine: the end of the last run stopped them.
    `resume_once` starts each once its node was observed. A hold is ignored here, so that a stale one keeps no model
    down; an open operation on a model's placement is not.
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
            if apply.set_desired_running(placement, ""):
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
