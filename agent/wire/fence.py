"""Fencing: who may command this agent."""

from typing import Annotated

from pydantic import Field

from agent.wire.base import WireModel


class Claim(WireModel):
    """A master's claim. Higher epochs win; an equal epoch of another instance is refused."""

    epoch: Annotated[int, Field(ge=1, lt=2**63)]
    instance_id: str = Field(min_length=8, max_length=64)


class FenceView(WireModel):
    """The claim that the agent holds on disk; None before the first."""

    held: Claim | None = None
