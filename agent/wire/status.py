"""What changes on a node: ``status`` and the event stream."""

from typing import Literal

from agent.wire.base import BootId, Whole, WireModel
from agent.wire.fence import Claim
from agent.wire.instances import InstanceView


class GpuStatus(WireModel):
    """One GPU now. None is unknown, never 0."""

    uuid: str
    used_bytes: int | None = None
    total_bytes: int | None = None
    utilization_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    problem: str | None = None


class HostStatus(WireModel):
    """The machine now. None is unknown."""

    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    cpu_percent: float | None = None
    load_1m: float | None = None
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None


class NodeStatus(WireModel):
    """``GET /agent/v1/status``: everything that the master keeps of a node, at one moment.

    `(boot_id, seq)` orders observations: `seq` grows over restarts of the agent, `boot_id` changes with the machine's
    boot. `capabilities_seq` changes when ``capabilities`` should be read again.
    """

    boot_id: BootId
    seq: Whole
    capabilities_seq: Whole
    time: str
    held_claim: Claim | None
    host: HostStatus
    gpus: tuple[GpuStatus, ...] = ()
    instances: tuple[InstanceView, ...] = ()
    warnings: tuple[str, ...] = ()


class Event(WireModel):
    """One line of ``GET /agent/v1/events?after=<seq>`` (NDJSON).

    ``status`` carries a whole status (first line, after a gap, and every few seconds); ``instance`` one instance that
    changed; ``ping`` keeps the line alive. A gap between `seq` of two lines means that a status follows.
    """

    kind: Literal["status", "instance", "ping"]
    boot_id: BootId
    seq: Whole
    status: NodeStatus | None = None
    instance: InstanceView | None = None
