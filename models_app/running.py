"""The only writer of what is seen of placements. A report is written only when it is newer than the one that stands.

`(boot_id, seq)` orders reports of one node: within a boot `seq` grows; another boot id is a later boot.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Q

from agent.wire.instances import InstanceState, InstanceView
from agent.wire.status import NodeStatus
from mirbad.kernel import clock
from mirbad.kernel.redact import redact
from models_app import events, routing
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
# These change while an engine serves without anything that a person or the gateway acts on.
_UNSTEADY = ("memoryBytes",)


@dataclass(frozen=True, slots=True)
class _Moment:
    boot_id: str
    seq: int

    @property
    def is_newer(self) -> Q:
        return ~Q(observed_boot=self.boot_id) | Q(observed_seq__lt=self.seq)


def state_of(view: InstanceView | None) -> str:
    """The observed state that `view` stands for; None is an instance that the node does not know."""
    if view is None:
        return STOPPED
    if view.state == InstanceState.EXITED:
        return STOPPED if view.stop_requested else FAILED
    return _STATES[view.state]


def observe(node_id: str, status: NodeStatus) -> int:
    """Write what `status` says of every placement on `node_id`; how many of them changed."""
    views = {view.instance_id: view for view in status.instances}
    moment = _Moment(status.boot_id, status.seq)
    with transaction.atomic():
        placements = Placement.objects.filter(node_id_text=node_id)
        return _write(placements, views, moment)


def observe_instance(node_id: str, boot_id: str, seq: int, view: InstanceView) -> int:
    """Write what one event says of one placement; 1 when that changed something."""
    with transaction.atomic():
        placements = Placement.objects.filter(node_id_text=node_id, pk=view.instance_id)
        return _write(placements, {view.instance_id: view}, _Moment(boot_id, seq))


def mark_unreachable(node_id: str) -> int:
    """Nothing is known any more of the placements on `node_id`; how many that changed. Their last view is kept."""
    with transaction.atomic():
        known = Placement.objects.filter(node_id_text=node_id).exclude(observed=UNKNOWN)
        models = list(known.values_list("model_id", flat=True))
        # Order starts afresh: after the break the node may repeat the very report that stood before it.
        changed = known.update(observed=UNKNOWN, observed_boot="", observed_seq=-1, observed_at=clock.now())
        if changed:
            routing.bump()
            for model_id in models:
                events.changed(model_id)
    return changed


def _write(placements: Any, views: dict[str, InstanceView], moment: _Moment) -> int:
    same: list[Any] = []
    changed: list[str] = []
    routed = False
    for placement in placements:
        seen = _seen(placement, views.get(str(placement.pk)))
        if _steady(placement, seen):
            same.append(placement.pk)
        elif _write_one(placement.pk, seen, moment):
            changed.append(placement.model_id)
            routed |= any(getattr(placement, column) != seen[column] for column in ("observed", "observed_generation"))
    if same:
        stamp = {"observed_boot": moment.boot_id, "observed_seq": moment.seq, "observed_at": clock.now()}
        Placement.objects.filter(moment.is_newer, pk__in=same).update(**stamp)
    if routed:
        routing.bump()
    for model_id in _once(changed):
        events.changed(model_id)
    return len(changed)


def _write_one(pk: Any, seen: dict[str, Any], moment: _Moment) -> bool:
    return bool(
        Placement.objects.filter(moment.is_newer, pk=pk).update(
            **seen, observed_boot=moment.boot_id, observed_seq=moment.seq, observed_at=clock.now()
        )
    )


def _seen(placement: Placement, view: InstanceView | None) -> dict[str, Any]:
    seen: dict[str, Any] = {
        "observed": state_of(view),
        "observed_generation": view.generation if view else None,
        "observed_config_hash": view.config_hash if view else "",
        "observed_reason": redact((view.reason or "") if view else "")[:2000],
        "observed_view": _kept(view) if view else {},
    }
    if view and view.state == InstanceState.READY and view.start_seconds is not None:
        seen["start_seconds"] = view.start_seconds
    return seen


def _kept(view: InstanceView) -> dict[str, Any]:
    # An engine may print a secret of its environment; rows are shown to people.
    kept = view.to_wire()
    kept["lastLines"] = [redact(line) for line in view.last_lines]
    kept["reason"] = redact(view.reason) if view.reason else view.reason
    return kept


def _steady(placement: Placement, seen: dict[str, Any]) -> bool:
    def without(view: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in view.items() if name not in _UNSTEADY}

    return all(
        without(placement.observed_view) == without(value)
        if column == "observed_view"
        else getattr(placement, column) == value
        for column, value in seen.items()
    )


def _once(names: Iterable[str]) -> Iterable[str]:
    return dict.fromkeys(names)
