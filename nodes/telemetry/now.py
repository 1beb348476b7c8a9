"""The last word of nodes about themselves, and how old it is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import ValidationError

from agent.wire.status import GpuStatus, HostStatus
from mirbad.kernel import clock
from nodes.models import Gpu, Node

FRESH = timedelta(seconds=5)
"""A preview of what fits trusts nothing older."""


@dataclass(frozen=True, slots=True)
class NodeTelemetry:
    """What a node said last. `gpus` holds the cards that it told of, by UUID; None is unknown."""

    node_id: str
    at: datetime | None
    age_seconds: float | None
    host: HostStatus
    gpus: Mapping[str, GpuStatus]

    @property
    def fresh(self) -> bool:
        """Whether it is no older than 5 seconds."""
        return self.age_seconds is not None and self.age_seconds <= FRESH.total_seconds()


def latest(node_ids: Iterable[str]) -> dict[str, NodeTelemetry]:
    """The last word of each of these nodes that there is; two statements."""
    now = clock.now()
    wanted = tuple(node_ids)
    gpus: dict[str, dict[str, GpuStatus]] = {}
    for node_id, uuid, seen in Gpu.objects.filter(node_id__in=wanted, present=True).values_list(
        "node_id", "uuid", "seen"
    ):
        if seen and (status := gpu_status(uuid, seen)) is not None:
            gpus.setdefault(node_id, {})[uuid] = status
    found = {}
    for pk, host, at in Node.objects.filter(pk__in=wanted).values_list("pk", "host", "status_at"):
        age = None if at is None else max(0.0, (now - at).total_seconds())
        found[pk] = NodeTelemetry(pk, at, age, host_status(host), gpus.get(pk, {}))
    return found


def host_status(seen: Mapping[str, object]) -> HostStatus:
    """The machine as it was told; all unknown when that is in a form of another version."""
    try:
        return HostStatus.model_validate(seen)
    except ValidationError:
        return HostStatus()


def gpu_status(uuid: str, seen: Mapping[str, object]) -> GpuStatus | None:
    """A card as it was told; None when that is in a form of another version."""
    try:
        return GpuStatus.model_validate({**seen, "uuid": uuid})
    except ValidationError:
        return None
