"""Transition tables: the literal list of states and of their followers."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateTable:
    """States of one column and the moves between them. `moves` maps a state to those that may follow it."""

    name: str
    moves: Mapping[str, frozenset[str]]

    @property
    def states(self) -> tuple[str, ...]:
        """All states, in the order of the table."""
        return tuple(self.moves)

    @property
    def choices(self) -> list[tuple[str, str]]:
        """The states as Django field choices."""
        return [(state, state) for state in self.moves]

    def sources(self, target: str) -> frozenset[str]:
        """Return the states from which `target` can be reached. KeyError for a state that is not in the table."""
        if target not in self.moves:
            raise KeyError(f"{self.name} has no state {target!r}")
        return frozenset(state for state, following in self.moves.items() if target in following)
