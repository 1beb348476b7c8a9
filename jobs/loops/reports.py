"""Reports of nodes, collected for a moment and written together: a thousand nodes cost a few statements.

Only the last status of each node counts. Not thread-safe: it belongs to the watcher's event loop.
"""

from collections.abc import Mapping
from datetime import datetime

import structlog
from django.db import DataError, IntegrityError, transaction

from agent.wire.status import NodeStatus
from mirbad.kernel import clock
from models_app import routing, running
from models_app.placement import gpu_conditions
from nodes import reachability
from nodes.models import Node
from nodes.states import ONLINE
from nodes.telemetry.store import store

log = structlog.get_logger(__name__)

AT_ONCE = 250
"""Nodes in one transaction: other writers wait for no more than these."""

Report = tuple[NodeStatus | None, datetime]
"""A status, or None for a sign of life without one; and the time of its arrival."""


class Reports:
    """Reports that arrived and are not written yet."""

    def __init__(self) -> None:
        self._reports: dict[str, Report] = {}

    def heard(self, node_id: str, status: NodeStatus | None = None) -> None:
        """Add a report of a node."""
        earlier = self._reports.get(node_id)
        self._reports[node_id] = (status or (earlier[0] if earlier else None), clock.now())

    def take(self) -> dict[str, Report]:
        """Remove and return all reports."""
        reports, self._reports = self._reports, {}
        return reports

    def take_of(self, node_id: str) -> dict[str, Report]:
        """Remove and return the report of one node."""
        report = self._reports.pop(node_id, None)
        return {} if report is None else {node_id: report}

    def give_back(self, reports: Mapping[str, Report]) -> None:
        """Add reports that could not be written; later ones replace them."""
        for node_id, (status, at) in reports.items():
            later = self._reports.get(node_id)
            self._reports[node_id] = (status, at) if later is None else (later[0] or status, later[1])

    def clear(self) -> None:
        """Drop all reports: another watcher receives them by now."""
        self._reports.clear()


def chunks(reports: Mapping[str, Report]) -> list[dict[str, Report]]:
    """Return `reports` in parts that are written one after another, so that other writers get their turn."""
    ids = sorted(reports)
    return [{pk: reports[pk] for pk in ids[start : start + AT_ONCE]} for start in range(0, len(ids), AT_ONCE)]


def write(reports: Mapping[str, Report]) -> frozenset[str]:
    """Write reports, and return the nodes whose streams must be reconnected, because they are not Online.

    Such a node was found incompatible, or obeys another master.
    """
    broken: set[str] = set()
    for chunk in chunks(reports):
        try:
            broken.update(write_strictly(chunk))
        except (DataError, IntegrityError, ArithmeticError, ValueError, TypeError):
            # One of them reported a value that cannot be stored: that must not cost the others anything.
            broken.update(*(_write_alone(node_id, report) for node_id, report in chunk.items()))
    return frozenset(broken)


def write_strictly(reports: Mapping[str, Report]) -> set[str]:
    """Write reports in one transaction, and return the nodes that are not Online. Raises the errors of the database."""
    with transaction.atomic():
        online = reachability.observe_many(reports)
        running.observe_many({pk: status for pk, (status, _) in reports.items() if status and pk in online})
        store({pk: (status, at) for pk, (status, at) in reports.items() if status and pk in online})
    return reports.keys() - online


def _write_alone(node_id: str, report: Report) -> set[str]:
    try:
        return write_strictly({node_id: report})
    except (DataError, IntegrityError, ArithmeticError, ValueError, TypeError):
        log.exception("a node's report cannot be stored", node=node_id)
        return {node_id}


def write_loss(node_id: str, reason: str, heard: Mapping[str, Report]) -> None:
    """Write the loss of a node's stream, and `heard`, its last reports. While the node is not Online, the state of its
    engines is unknown.
    """
    with transaction.atomic():
        write(heard)
        reachability.lost(node_id, reason)
        if Node.objects.filter(pk=node_id).exclude(reachability=ONLINE).exists():
            running.mark_unreachable(node_id)


def write_first(node_id: str, status: NodeStatus, *, again: bool = False) -> None:
    """Write the first status of a stream, and the missing GPUs of models.

    `again`: the stream was broken, so the node may have returned with another key, which the gateway has to read.
    """
    with transaction.atomic():
        if again:
            routing.bump()
        write({node_id: (status, clock.now())})
        gpu_conditions.refresh(node_id)
