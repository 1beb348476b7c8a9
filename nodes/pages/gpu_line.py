"""A GPU in a line: its bar, and what it does now, where a node is shown as a whole."""

from dataclasses import dataclass

from agent.wire.status import GpuStatus
from mirbad.web import parts
from mirbad.web.parts import NOT_REPORTED, Bar
from nodes.models import Gpu
from nodes.telemetry.now import gpu_status


@dataclass(frozen=True, slots=True)
class GpuLine:
    """One GPU as its bar, and what else is known of it now."""

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
        """What it does, in a line: that its use is not reported is said, heat and power are left out then."""
        use = "use not reported" if self.utilization == NOT_REPORTED else f"{self.utilization} busy"
        rest = [word for word in (self.temperature, self.power) if word != NOT_REPORTED]
        return " · ".join([use, *rest, *([f"headroom {self.headroom}"] if self.headroom else [])])


def gpu_line(gpu: Gpu) -> GpuLine:
    """One GPU; what the driver does not tell stays unknown."""
    seen = gpu_status(gpu.uuid, gpu.seen) or GpuStatus(uuid=gpu.uuid)
    total = seen.total_bytes if seen.total_bytes is not None else gpu.memory_bytes
    free = None if total is None or seen.used_bytes is None else max(0, total - seen.used_bytes)
    headroom = None if free is None else max(0, free - (gpu.reserve_bytes or 0))
    label = f"GPU {gpu.index}" if gpu.index is not None else "GPU"
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
