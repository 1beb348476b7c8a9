"""The state of a fleet after its recovery: the takeover, and each node."""

from dataclasses import dataclass

from jobs.backup import installation
from jobs.backup.installation import InstalledRecovery
from jobs.loops import configured_takeover
from nodes.pages.contexts import nodes
from nodes.pages.contexts.nodes import NodeCard


@dataclass(frozen=True, slots=True)
class RecoveredFleet:
    """The recovery, whether its takeover is still to come or under way, and the nodes with their states."""

    installed: InstalledRecovery
    is_taking_over: bool
    nodes: tuple[NodeCard, ...]

    @property
    def answered(self) -> int:
        """Return how many nodes this master commands now."""
        return sum(node.serving for node in self.nodes)


def read() -> RecoveredFleet | None:
    """Return the state, None for a master that was not made by a recovery."""
    found = installation.installed()
    if found is None:
        return None
    cards = tuple(card for card in nodes.fleet() if not card.revoked)
    return RecoveredFleet(found, configured_takeover.is_coming(), cards)
