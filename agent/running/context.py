"""Configuration and tools that all engine supervisors of a node share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agent.admission import StartSlots
from agent.config import AgentConfig
from agent.deliveries.base import EngineDelivery
from agent.running.health import Prober
from agent.running.record import RecordStore
from agent.running.requests import EngineRequests
from agent.telemetry.nvml import Cards
from agent.wire.capability import Delivery, MemoryModel
from agent.wire.instances import InstanceView


@dataclass
class PollIntervals:
    """Seconds between polls of an engine, and the limits counted in them; tests use shorter ones.

    An engine that broke off a request is looked at every moment for `dying_seconds`. `headless_seconds` is the life
    after which a shard without a health endpoint counts as ready.
    """

    starting_seconds: float = 0.25
    watching_seconds: float = 2.0
    memory_seconds: float = 10.0
    recovery_seconds: float = 3.0
    unhealthy_failures: int = 3
    headless_seconds: float = 3.0
    dying_seconds: float = 3.0


@dataclass
class EngineContext:
    """Configuration and tools of the supervisors. `cards` is None while no GPU can be read."""

    config: AgentConfig
    fleet: str
    node: str
    records: RecordStore
    deliveries: Mapping[Delivery, EngineDelivery]
    start_slots: StartSlots
    changed: Callable[[InstanceView], None]
    prober: Prober = field(default_factory=Prober)
    requests: EngineRequests = field(default_factory=EngineRequests)
    ports: set[int] = field(default_factory=set)
    memory_model: MemoryModel = MemoryModel.UNIFIED
    cards: Cards | None = None
    intervals: PollIntervals = field(default_factory=PollIntervals)
