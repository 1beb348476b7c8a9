"""Fencing: the master that may command this agent."""

from typing import Annotated, Any

from pydantic import Field, PlainSerializer

from agent.wire.base import WireModel

MAX_EPOCH = 2**53 - 1
"""The highest epoch of any claim: the last whole number that every reader of JSON reads exactly."""


class Claim(WireModel):
    """A master's claim. Higher epochs win; an equal epoch of another instance is refused."""

    epoch: Annotated[int, Field(ge=1, le=MAX_EPOCH)]
    instance_id: str = Field(min_length=8, max_length=64)


class MalformedClaim(WireModel):
    """A claim in a report that no master can hold: its epoch is out of range, or it is not a claim at all.

    It never takes part in a comparison. Reports that carry one are read all the same, so that the master can name it.
    """

    epoch: Any = None

    @property
    def shown_epoch(self) -> str:
        """Return the epoch as a short text; a number of many digits by its size."""
        if isinstance(self.epoch, int) and not isinstance(self.epoch, bool):
            size = self.epoch.bit_length()
            return str(self.epoch) if size <= 64 else f"{'-' if self.epoch < 0 else ''}2^{size - 1} or more"
        return f"of type {type(self.epoch).__name__}"


def _to_wire(held: Claim | MalformedClaim) -> dict[str, Any] | None:
    return held.to_wire() if isinstance(held, Claim) else None


ReportedClaim = Annotated[
    Annotated[Claim, PlainSerializer(_to_wire)] | Annotated[MalformedClaim, PlainSerializer(_to_wire)],
    Field(union_mode="left_to_right"),
]
"""The claim that a node says it holds. Sent, it is always a `Claim`."""


def well_formed(reported: Claim | MalformedClaim | None) -> Claim | None:
    """Return the reported claim; None when there is none, and when no master can hold it."""
    return reported if isinstance(reported, Claim) else None


class FenceView(WireModel):
    """The claim that the agent holds on disk; None before the first."""

    held: ReportedClaim | None = None
