"""The drain of a node: its agent lets go of GPUs that no model uses, so that they can be reset."""

from agent.wire.base import WireModel


class DrainState(WireModel):
    """``PUT /agent/v1/drain``, request and response."""

    draining: bool
