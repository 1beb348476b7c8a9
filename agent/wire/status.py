"""The changing state of a node: ``status`` and the event stream."""

from typing import Annotated, Literal

from pydantic import Field

from agent.wire.base import BootId, Whole, WireModel
from agent.wire.fence import ReportedClaim
from agent.wire.instances import InstanceView


class GpuProcess(WireModel):
    """A process that uses a GPU. `instance_id` is the engine of the process, empty for other processes."""

    pid: Annotated[int, Field(ge=0, lt=2**32)]
    name: Annotated[str, Field(max_length=64)] = ""
    used_bytes: Whole | None = None
    instance_id: Annotated[str, Field(max_length=64)] = ""


class GpuModelUse(WireModel):
    """Memory of one model on one GPU: `measured` by its processes, else an even share."""

    instance_id: Annotated[str, Field(max_length=64)]
    model_id: Annotated[str, Field(max_length=64)]
    used_bytes: Whole | None = None
    measured: bool = False


class GpuStatus(WireModel):
    """The current state of one GPU. None is unknown, never 0; `processes` is None when unreadable, empty for none.

    For a card that shares the machine's memory `used_bytes` counts the GPU processes, and there is no total.
    `processes` lists the largest; `process_count` counts all. `age_seconds` is the age of the values while the driver
    is slow, or `released`: not read by the agent, so that the card can be reset. None is now.
    `problem_code`, `recovery` and `xid` are those of a `GpuCapability`.
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
    problem_code: Annotated[str, Field(max_length=40)] | None = None
    recovery: Annotated[str, Field(max_length=40)] | None = None
    xid: Whole | None = None
    age_seconds: float | None = None
    released: bool = False


class HostStatus(WireModel):
    """The current state of the machine. None is unknown.

    Memory is within the limits of the agent's control groups; available memory includes no swap and no huge pages.
    `engine_threads` are the threads of an engine that computes on the CPU. Bandwidth is the best measured read rate of
    all cores together and of one core; None until it is measured in the background. `draining` is the
    state that the master sent last.
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
    engine_threads: Whole | None = None
    draining: bool | None = None


class NodeStatus(WireModel):
    """``GET /agent/v1/status``: everything that the master records of a node, at one moment.

    `(boot_id, seq)` orders observations: `seq` grows across restarts of the agent, `boot_id` changes with the machine's
    boot. `capabilities_seq` changes when ``capabilities`` should be read again.
    `warning_codes` has the code of each of `warnings`.
    """

    boot_id: BootId
    seq: Whole
    capabilities_seq: Whole
    time: str
    held_claim: ReportedClaim | None
    host: HostStatus
    gpus: tuple[GpuStatus, ...] = ()
    instances: tuple[InstanceView, ...] = ()
    warnings: tuple[str, ...] = ()
    warning_codes: tuple[str, ...] = ()


class Event(WireModel):
    """One line of ``GET /agent/v1/events?after=<seq>`` (NDJSON).

    ``status`` carries a whole status (first line, after a gap, and every few seconds); ``instance`` one changed
    instance; ``ping`` keeps the connection alive. After a gap in `seq` a status follows.
    """

    kind: Literal["status", "instance", "ping"]
    boot_id: BootId
    seq: Whole
    status: NodeStatus | None = None
    instance: InstanceView | None = None
