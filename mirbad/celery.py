"""The Celery application of the worker and of beat: its tasks, and the literal table of ticks.

``celery -A mirbad.celery worker`` and ``celery -A mirbad.celery beat --pidfile=``; the pool, its size and the
in-memory schedule come from `mirbad.tasking.app`.
"""

import logging
from typing import Any

from celery.signals import beat_init, celeryd_init, setup_logging, worker_ready, worker_shutdown

from mirbad.kernel import logs
from mirbad.kernel.conf import settings
from mirbad.tasking import heartbeat
from mirbad.tasking.app import app

__all__ = ["app"]

app.conf.imports = ("jobs.tasks", "audit.tasks", "mirbad.accounts.tasks", "nodes.tasks")


def _every(task: str, seconds: float) -> dict[str, Any]:
    # A tick that no worker took in time is useless: the next one does the same.
    return {"task": task, "schedule": seconds, "options": {"expires": max(5.0, 3 * seconds)}}


def _renewal_seconds() -> float:
    # Once a minute is enough for months; a life of seconds, as in tests, needs checks that match.
    return max(1.0, min(60.0, settings().agent_certificate_life.total_seconds() / 60))


app.conf.beat_schedule = {
    "enqueue-due-operations": _every("jobs.sweep", 2.0),
    "resume-wanted-models": _every("jobs.resume", 3.0),
    "restart-ended-engines": _every("jobs.restarts", 1.0),
    "stop-left-over-engines": _every("jobs.strays", settings().moves_sweep_interval.total_seconds()),
    "forget-ended-engines": _every("jobs.records", 60.0),
    "open-moves-of-evacuations": _every("jobs.evacuations", 2.0),
    "carry-on-imports": _every("jobs.restores", 2.0),
    "release-holds-that-were-left": _every("jobs.holds", 20.0),
    "prune-operations": _every("jobs.prune", 3600.0),
    "make-scheduled-backups": _every("jobs.backups", 20.0),
    "remove-uploads": _every("jobs.uploads", 600.0),
    "rebuild-replicas": _every("jobs.replicas", 3.0),
    "take-over-when-configured": _every("jobs.takeover", 5.0),
    "renew-certificates-of-nodes": _every("jobs.renew", _renewal_seconds()),
    "look-after-the-fleets-ca": _every("jobs.ca-rotation", 5.0),
    "seal-audit-lines": _every("audit.seal", 5.0),
    "average-and-prune-telemetry": _every("nodes.telemetry", 30.0),
    "tell-nodes-of-their-drain": _every("nodes.drains", 3.0),
    "close-login-lock-outs": _every("accounts.logins", 30.0),
    "witness-the-audit-log": _every("nodes.audit-witnesses", 300.0),
    "prune-audit-lines": _every("audit.retention", 3600.0),
}

_beats: list[heartbeat.Heartbeat] = []
_is_worker: list[bool] = []


def _start_heartbeat(process: str) -> None:
    if beat := heartbeat.start(process):
        _beats.append(beat)


@celeryd_init.connect(weak=False)
def _worker_begins(**_: Any) -> None:
    _is_worker.append(True)


@setup_logging.connect(weak=False)
def _configure_logs(**_: Any) -> None:
    logs.configure("worker" if _is_worker else "beat")
    # A line for each tick that is sent and received would bury the important ones.
    for chatty in ("celery.beat", "celery.worker.strategy"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


@worker_ready.connect(weak=False)
def _worker_is_ready(**_: Any) -> None:
    _start_heartbeat("worker")


@beat_init.connect(weak=False)
def _beat_is_ready(**_: Any) -> None:
    _start_heartbeat("beat")


@worker_shutdown.connect(weak=False)
def _worker_ends(**_: Any) -> None:
    for beat in _beats:
        beat.stop()
