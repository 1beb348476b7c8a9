"""One measured figure and its line."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """`ok` says whether `value` reaches `goal`; both are words with units."""

    name: str
    value: str
    goal: str
    ok: bool

    def line(self) -> str:
        """``name, value, goal, ok|short``."""
        return f"{self.name}, {self.value}, {self.goal}, {'ok' if self.ok else 'short'}"


def under(name: str, value: float, limit: float, unit: str) -> Figure:
    """A figure that should stay under a limit."""
    return Figure(name, f"{value:.1f} {unit}", f"under {limit:.0f} {unit}", value < limit)


def exactly(name: str, value: object, wanted: object) -> Figure:
    """A figure that should be one value."""
    return Figure(name, str(value), str(wanted), value == wanted)
