"""What all instances of a node share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agent.admission import Starts
from agent.config import AgentConfig
from agent.deliveries.base import EngineDelivery
from agent.running.health import Prober
from agent.running.record import Records
from agent.telemetry.nvml import Cards
from agent.wire.capability import Delivery, MemoryModel
from agent.wire.instances import InstanceView


@dataclass
class Pace:
    """How often an engine is looked at, in seconds; tests go faster."""

    starting: float = 0.25
    watching: float = 2.0
    memory: float = 10.0
    finding: float = 3.0
    failures: int = 3
    silent: float = 3.0


@dataclass
class Yard:
    """Configuration and tools that keepers use. `cards` is None while no GPU can be read."""

    config: AgentConfig
    fleet: str
    node: str
    records: Records
    deliveries: Mapping[Delivery, EngineDelivery]
    starts: Starts
    changed: Callable[[InstanceView], None]
    prober: Prober = field(default_factory=Prober)
    ports: set[int] = field(default_factory=set)
    memory_model: MemoryModel = MemoryModel.UNIFIED
    cards: Cards | None = None
    pace: Pace = field(default_factory=Pace)
