"""The last status of nodes, and its age."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import ValidationError

from agent.wire.status import GpuStatus, HostStatus
from mirbad.kernel import clock
from nodes.models import Gpu, Node

FRESH = timedelta(seconds=5)
"""A preview of the fit trusts no older status."""


@dataclass(frozen=True, slots=True)
class NodeTelemetry:
    """The last status of a node. `gpus` holds the cards that it reported, by UUID; None is unknown."""

    node_id: str
    at: datetime | None
    age_seconds: float | None
    host: HostStatus
    gpus: Mapping[str, GpuStatus]

    @property
    def fresh(self) -> bool:
        """True when the status is at most 5 seconds old."""
        return self.age_seconds is not None and self.age_seconds <= FRESH.total_seconds()


def latest(node_ids: Iterable[str]) -> dict[str, NodeTelemetry]:
    """Return the last status of each of these nodes that has one; two statements."""
    now = clock.now()
    chosen = tuple(node_ids)
    gpus: dict[str, dict[str, GpuStatus]] = {}
    for node_id, uuid, observed in Gpu.objects.filter(node_id__in=chosen, present=True).values_list(
        "node_id", "uuid", "seen"
    ):
        if observed and (status := gpu_status(uuid, observed)) is not None:
            gpus.setdefault(node_id, {})[uuid] = status
    found = {}
    for pk, host, at in Node.objects.filter(pk__in=chosen).values_list("pk", "host", "status_at"):
        age = None if at is None else max(0.0, (now - at).total_seconds())
        found[pk] = NodeTelemetry(pk, at, age, host_status(host), gpus.get(pk, {}))
    return found


def host_status(observed: Mapping[str, object]) -> HostStatus:
    """Parse the stored host status; all values are unknown when its form is of another version."""
    try:
        return HostStatus.model_validate(observed)
    except ValidationError:
        return HostStatus()


def gpu_status(uuid: str, observed: Mapping[str, object]) -> GpuStatus | None:
    """Parse the stored status of a card; None when its form is of another version."""
    try:
        return GpuStatus.model_validate({**observed, "uuid": uuid})
    except ValidationError:
        return None
