"""The only writer of the observed state of placements. A report is written only when it is newer than the stored one.

`(boot_id, seq)` orders the reports of one node: within a boot `seq` grows; another boot id is a later boot.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q

from agent.common.redaction import redact
from agent.wire.instances import InstanceState, InstanceView
from agent.wire.status import NodeStatus
from mirbad.kernel import bulk, clock
from models_app import events, exits, intents, orphans, routing
from models_app.models import Placement
from models_app.states import FAILED, READY, STARTING, STOPPED, STOPPING, UNHEALTHY, UNKNOWN

_STATES: dict[InstanceState, str] = {
    InstanceState.PREPARING: STARTING,
    InstanceState.STARTING: STARTING,
    InstanceState.LOADING: STARTING,
    InstanceState.READY: READY,
    InstanceState.UNHEALTHY: UNHEALTHY,
    InstanceState.STOPPING: STOPPING,
    InstanceState.LOST: STOPPED,
}
# These values change while an engine serves, and neither a person nor the gateway acts on them.
_UNSTEADY = ("memoryBytes",)
_ROUTED = ("observed", "observed_generation")


@dataclass(frozen=True, slots=True)
class _Moment:
    boot_id: str
    seq: int

    @property
    def is_newer(self) -> Q:
        return ~Q(observed_boot=self.boot_id) | Q(observed_seq__lt=self.seq)

    def is_later_than(self, placement: Placement) -> bool:
        return placement.observed_boot != self.boot_id or placement.observed_seq < self.seq


def state_of(view: InstanceView | None) -> str:
    """Return the observed state for `view`; None is an instance that the node does not know."""
    if view is None:
        return STOPPED
    if view.state == InstanceState.EXITED:
        return STOPPED if view.stop_requested else FAILED
    return _STATES[view.state]


def observe(node_id: str, status: NodeStatus) -> int:
    """Write the state of every placement on `node_id` from `status`; return how many changed."""
    views = {view.instance_id: view for view in status.instances}
    moment = _Moment(status.boot_id, status.seq)
    with transaction.atomic():
        placements = list(Placement.objects.select_for_update().filter(node_id_text=node_id).order_by("pk"))
        orphans.observe({node_id: status}, placements)
        return _write(placements, views, moment)


def observe_many(statuses: Mapping[str, NodeStatus]) -> int:
    """Write as `observe` the status of each node, in a number of queries that grows only with the changes."""
    if not statuses:
        return 0
    with transaction.atomic():
        rows: dict[str, list[Placement]] = {}
        for placement in Placement.objects.select_for_update().filter(node_id_text__in=statuses).order_by("pk"):
            rows.setdefault(placement.node_id_text, []).append(placement)
        orphans.observe(statuses, (placement for placements in rows.values() for placement in placements))
        changes = _Changes()
        for node_id, placements in rows.items():
            views = {view.instance_id: view for view in statuses[node_id].instances}
            changes.take(placements, views, _Moment(statuses[node_id].boot_id, statuses[node_id].seq))
        return changes.end()


def observe_instance(node_id: str, boot_id: str, seq: int, view: InstanceView) -> int:
    """Write the state of one placement from one event; return 1 for a change, 0 otherwise or for a foreign engine."""
    try:
        placement_id = UUID(view.instance_id)
    except ValueError:
        return 0
    with transaction.atomic():
        placements = Placement.objects.select_for_update().filter(node_id_text=node_id, pk=placement_id)
        return _write(placements, {str(placement_id): view}, _Moment(boot_id, seq))


def mark_unreachable(node_id: str) -> int:
    """Set the placements on `node_id` to unknown, with that reason; return how many changed. Their last view stays."""
    with transaction.atomic():
        known = Placement.objects.filter(node_id_text=node_id).exclude(observed=UNKNOWN)
        models = list(known.values_list("model_id", flat=True))
        # The order restarts: after the outage the node may repeat the report that was stored before it.
        changed = known.update(
            observed=UNKNOWN,
            observed_boot="",
            observed_seq=-1,
            observed_at=clock.now(),
            observed_reason="The node is not reporting.",
        )
        if changed:
            routing.bump()
            for model_id in models:
                events.changed(model_id)
    return changed


def _write(placements: Iterable[Placement], views: dict[str, InstanceView], moment: _Moment) -> int:
    changes = _Changes()
    changes.take(placements, views, moment)
    return changes.end()


class _Changes:
    """Changes from several reports. In the caller's transaction; `end` writes the remaining ones."""

    def __init__(self) -> None:
        self._same: list[tuple[Any, tuple[str, int, datetime]]] = []
        self._changed: list[str] = []
        self._running: list[tuple[Placement, str]] = []
        self._stopped: list[tuple[Placement, str]] = []
        self._failed: list[UUID] = []
        self._routed = False

    def take(self, placements: Iterable[Placement], views: dict[str, InstanceView], moment: _Moment) -> None:
        """Collect the report of one node."""
        now = clock.now()
        for placement in placements:
            if not moment.is_later_than(placement):
                continue
            view = views.get(str(placement.pk))
            values = _values_of(placement, view)
            if _steady(placement, values) and placement.observed_boot in ("", moment.boot_id):
                self._same.append((placement.pk, (moment.boot_id, moment.seq, now)))
            elif self._write_one(placement, values, view, moment):
                self._changed.append(placement.model_id)
                self._learn(placement, values, moment.boot_id)
                self._routed |= any(getattr(placement, column) != values[column] for column in _ROUTED)

    def end(self) -> int:
        """Stamp unchanged rows and announce changed ones; return how many changed."""
        bulk.update_each(Placement, ("observed_boot", "observed_seq", "observed_at"), self._same)
        intents.learn(self._running, self._stopped)
        if self._failed:
            intents.forget(self._failed)
        if self._routed:
            routing.bump()
        for model_id in _once(self._changed):
            events.changed(model_id)
        return len(self._changed)

    def _write_one(
        self, placement: Placement, values: dict[str, Any], view: InstanceView | None, moment: _Moment
    ) -> bool:
        written = Placement.objects.filter(moment.is_newer, pk=placement.pk).update(
            **values, observed_boot=moment.boot_id, observed_seq=moment.seq, observed_at=clock.now()
        )
        if written and view is not None and exits.is_end(view) and exits.record(placement, view):
            own = view.state == InstanceState.EXITED
            Placement.objects.filter(pk=placement.pk).update(exits=F("exits") + int(own))
        return bool(written)

    def _learn(self, placement: Placement, values: dict[str, Any], boot_id: str) -> None:
        observed = values["observed"]
        if observed in (STARTING, READY):
            self._running.append((placement, boot_id))
        elif observed == STOPPED and values["observed_view"].get("state") != InstanceState.LOST.value:
            self._stopped.append((placement, boot_id))
        elif observed == FAILED:
            self._failed.append(placement.pk)


def _values_of(placement: Placement, view: InstanceView | None) -> dict[str, Any]:
    values: dict[str, Any] = {
        "observed": state_of(view),
        "observed_generation": view.generation if view else None,
        "observed_config_hash": view.config_hash if view else "",
        "observed_reason": redact((view.reason or "") if view else "")[:2000],
        "observed_view": _kept(view) if view else {},
    }
    if view and view.state == InstanceState.READY and view.start_seconds is not None:
        values["start_seconds"] = view.start_seconds
    return values


def _kept(view: InstanceView) -> dict[str, Any]:
    # An engine may print a secret of its environment, and people read these rows.
    kept = view.to_wire()
    kept["lastLines"] = [redact(line) for line in view.last_lines]
    kept["reason"] = redact(view.reason) if view.reason else view.reason
    return kept


def _steady(placement: Placement, values: dict[str, Any]) -> bool:
    def without(view: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in view.items() if name not in _UNSTEADY}

    return all(
        without(placement.observed_view) == without(value)
        if column == "observed_view"
        else getattr(placement, column) == value
        for column, value in values.items()
    )


def _once(names: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(names)
