"""A GPU in one line, for views of a whole node: its bar and its present use."""

from dataclasses import dataclass

from agent.common.gpu_label import gpu_label
from agent.wire.status import GpuStatus
from mirbad.web import parts
from mirbad.web.parts import NOT_REPORTED, Bar
from nodes.models import Gpu
from nodes.telemetry.now import gpu_status


@dataclass(frozen=True, slots=True)
class GpuLine:
    """One GPU as its bar, and its other present values."""

    label: str
    name: str
    uuid: str
    memory: Bar
    utilization: str
    temperature: str
    power: str
    problem: str
    shares_host_memory: bool
    reserve: str
    headroom: str
    present: bool

    @property
    def now(self) -> str:
        """The present use in a line: an unreported utilization is named, temperature and power are then left out."""
        use = "use not reported" if self.utilization == NOT_REPORTED else f"{self.utilization} busy"
        rest = [word for word in (self.temperature, self.power) if word != NOT_REPORTED]
        return " · ".join([use, *rest, *([f"headroom {self.headroom}"] if self.headroom else [])])


def gpu_line(gpu: Gpu) -> GpuLine:
    """Return one GPU; values that the driver does not report stay unknown."""
    seen = gpu_status(gpu.uuid, gpu.seen) or GpuStatus(uuid=gpu.uuid)
    total = seen.total_bytes if seen.total_bytes is not None else gpu.memory_bytes
    free = None if total is None or seen.used_bytes is None else max(0, total - seen.used_bytes)
    headroom = None if free is None else max(0, free - (gpu.reserve_bytes or 0))
    label = gpu_label(gpu.index, gpu.uuid)
    memory = parts.memory_bar(label, seen.used_bytes, total)
    if gpu.shares_host_memory:
        memory = Bar(label, None, None, "shares host memory")
    return GpuLine(
        label=label,
        name=gpu.name or "GPU, name not reported",
        uuid=gpu.uuid,
        memory=memory,
        utilization=_figure(seen.utilization_percent, "%"),
        temperature=_figure(seen.temperature_celsius, "°C"),
        power=_figure(seen.power_watts, "W"),
        problem=seen.problem or ("" if gpu.present else "The node no longer reports this GPU."),
        shares_host_memory=bool(gpu.shares_host_memory),
        headroom="" if headroom is None or gpu.shares_host_memory else parts.size(headroom),
        reserve=parts.size(gpu.reserve_bytes) if gpu.reserve_bytes is not None else "agent's default",
        present=gpu.present,
    )


def _figure(value: float | None, unit: str) -> str:
    return NOT_REPORTED if value is None else f"{value:.0f} {unit}"
