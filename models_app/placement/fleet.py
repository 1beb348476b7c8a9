"""Machines as the planner sees them: values of one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from agent.wire.capability import Runtime
from models_app.fit import ServePlan
from models_app.fit.speed import reached_bytes_per_second
from models_app.fit.verdict import Capacity
from models_app.placement.feasible import NodeFacts


@dataclass(frozen=True, slots=True)
class FleetCard:
    """One GPU: its capacity, and the number of models placed on it.

    One with a `problem` is not chosen by the planner; on one that is `unusable` nobody can place a model.
    """

    capacity: Capacity
    name: str
    memory: int | None
    models: int = 0
    problem: str = ""
    unusable: bool = False

    @property
    def uuid(self) -> str:
        """Return the GPU's id on the node."""
        return self.capacity.uuid

    @property
    def kind(self) -> tuple[str, int | None]:
        """Return (name, memory): cards of the same kind can work as one."""
        return (self.name, self.memory)


@dataclass(frozen=True)
class Machine:
    """One node. `unavailable` is the reason for which it does not serve, empty when it does.

    `holds_weights` is by its last report. `images` are the default container images by runtime, each as (image,
    digest).
    """

    facts: NodeFacts
    host: Capacity
    cards: tuple[FleetCard, ...] = ()
    models: int = 0
    unavailable: str = ""
    unavailable_code: str = "node_offline"
    holds_weights: bool = False
    has_gpu_with_shared_memory: bool = False
    bytes_per_second: int | None = None
    core_bytes_per_second: int | None = None
    engine_threads: int | None = None
    images: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def node_id(self) -> str:
        """Return the node's id."""
        return self.facts.node_id

    def rate(self, plan: ServePlan) -> int | None:
        """Return the bytes per second that an engine of this `plan` reads on the processor, by the threads it gets."""
        threads = plan.threads or self.engine_threads if plan.runtime == Runtime.LLAMA_CPP else None
        return reached_bytes_per_second(self.bytes_per_second, self.core_bytes_per_second, threads)

    @cached_property
    def kinds(self) -> dict[tuple[str, int | None], tuple[FleetCard, ...]]:
        """Return the cards without a problem, by kind."""
        found: dict[tuple[str, int | None], list[FleetCard]] = {}
        for card in self.cards:
            if not card.problem:
                found.setdefault(card.kind, []).append(card)
        return {kind: tuple(cards) for kind, cards in found.items()}
