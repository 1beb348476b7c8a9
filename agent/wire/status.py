"""What changes on a node: ``status`` and the event stream."""

from typing import Annotated, Literal

from pydantic import Field

from agent.wire.base import BootId, Whole, WireModel
from agent.wire.fence import Claim
from agent.wire.instances import InstanceView


class GpuProcess(WireModel):
    """A process that uses a GPU. `instance_id` is the engine that it belongs to, empty for somebody else's."""

    pid: Annotated[int, Field(ge=0, lt=2**32)]
    name: Annotated[str, Field(max_length=64)] = ""
    used_bytes: Whole | None = None
    instance_id: Annotated[str, Field(max_length=64)] = ""


class GpuModelUse(WireModel):
    """Memory of one model on one GPU: `measured` by its processes, or else a share that was split evenly."""

    instance_id: Annotated[str, Field(max_length=64)]
    model_id: Annotated[str, Field(max_length=64)]
    used_bytes: Whole | None = None
    measured: bool = False


class GpuStatus(WireModel):
    """One GPU now. None is unknown, never 0; `processes` None cannot be read, empty means that there are none.

    Of a card that shares the machine's memory `used_bytes` is what GPU processes hold, and there is no total. Of the
    `processes` the largest are listed; `process_count` counts all.
    """

    uuid: str
    index: int | None = None
    lost: bool = False
    used_bytes: int | None = None
    total_bytes: int | None = None
    utilization_percent: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    process_count: int | None = None
    processes: tuple[GpuProcess, ...] | None = None
    models: tuple[GpuModelUse, ...] = ()
    problem: str | None = None


class HostStatus(WireModel):
    """The machine now. None is unknown.

    Available memory holds no swap and no huge pages. Bandwidth is the best rate, measured in the background, at which
    all cores together and one core alone read memory; None until it was measured.
    """

    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    cpu_percent: float | None = None
    load_1m: float | None = None
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None
    huge_pages_bytes: int | None = None
    memory_bandwidth_bytes_per_second: Whole | None = None
    core_bandwidth_bytes_per_second: Whole | None = None


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
