"""What the planner knows of machines: values only, taken at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from models_app.fit.verdict import Room
from models_app.placement.feasible import NodeFacts


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU: what is free on it, and how many models have it. `kind` tells equal cards: name and memory."""

    room: Room
    name: str
    memory: int | None
    models: int = 0
    problem: str = ""

    @property
    def uuid(self) -> str:
        """Its name for the node."""
        return self.room.uuid

    @property
    def kind(self) -> tuple[str, int | None]:
        """Cards of one kind may work as one."""
        return (self.name, self.memory)


@dataclass(frozen=True)
class Machine:
    """One node. `away` says why it does not serve, empty when it does; `holds_weights` by its last report.

    `images` are the default images of runtimes in containers there, each as (image, digest).
    """

    facts: NodeFacts
    host: Room
    cards: tuple[Card, ...] = ()
    models: int = 0
    away: str = ""
    away_code: str = "node_offline"
    holds_weights: bool = False
    has_gpu_with_shared_memory: bool = False
    bytes_per_second: int | None = None
    images: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def node_id(self) -> str:
        """The node's id."""
        return self.facts.node_id

    @cached_property
    def kinds(self) -> dict[tuple[str, int | None], tuple[Card, ...]]:
        """Whole cards of each kind."""
        found: dict[tuple[str, int | None], list[Card]] = {}
        for card in self.cards:
            if not card.problem:
                found.setdefault(card.kind, []).append(card)
        return {kind: tuple(cards) for kind, cards in found.items()}
