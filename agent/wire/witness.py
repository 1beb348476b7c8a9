"""Heads of the master's audit log, and the agents that witness them.

A head is signed by a key of the log alone and counter-signed by each agent that saw it continue the last one. Both sign
the same text after a line of their own, so that neither signature passes for the other.
"""

import json
from typing import Annotated

from pydantic import Field

from agent.wire.base import Sha256Hex, Whole, WireModel

MAX_BREAKS = 16
"""Accepted breaks that an agent keeps. It drops none, so a full list accepts no further one."""

ACCEPTING = "audit.accept-log"
"""The action of the audit line by which a person decides that a node takes another log."""

HEAD_LINE = "mirbad audit head v1\n"
WITNESS_LINE = "mirbad audit witness v1\n"

KeyHex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
SignatureHex = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class AuditHead(WireModel):
    """The audit log at one size: the root of its Merkle tree, the hash of its last line, the log's key (Ed25519)."""

    size: Annotated[Whole, Field(ge=0)]
    root: Sha256Hex
    chain: Sha256Hex
    time: Annotated[str, Field(max_length=40)]
    key: KeyHex
    signature: SignatureHex

    def text(self) -> str:
        """Return the text that is signed, without the line before it."""
        values = {"size": self.size, "root": self.root, "chain": self.chain, "time": self.time, "key": self.key}
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @property
    def name(self) -> str:
        """The name of the head in a person's decision."""
        return f"{self.size} lines, root {self.root}"


class WitnessRequest(WireModel):
    """``PUT /agent/v1/witness``: a head, and the proof that it continues the one that the agent holds."""

    head: AuditHead
    proof: Annotated[tuple[Sha256Hex, ...], Field(max_length=128)] = ()


class BreakRequest(WireModel):
    """``PUT /agent/v1/witness/break``: a head to hold in place of the one held, as an owner decided.

    `line` is the audit line of the decision in the form that is hashed, and `proof` shows that it is under `head`.
    """

    head: AuditHead
    line: Annotated[str, Field(max_length=8192)]
    proof: Annotated[tuple[Sha256Hex, ...], Field(max_length=64)] = ()


class AcceptedBreak(WireModel):
    """A head that the agent left (`was`, with its own signature, or `refused`) and the one that it took (`now`).

    `line` is the audit line of the decision, `time` is by the agent's clock.
    """

    was: AuditHead
    signature: SignatureHex | None = None
    refused: AuditHead | None = None
    now: AuditHead
    line: str
    time: str


class WitnessView(WireModel):
    """The head that the agent saw last, its signature over it, and the last head that did not continue it.

    Times are by the agent's clock. `breaks` are never dropped.
    """

    key: KeyHex
    held: AuditHead | None = None
    held_at: str | None = None
    signature: SignatureHex | None = None
    refused: AuditHead | None = None
    refused_at: str | None = None
    breaks: tuple[AcceptedBreak, ...] = ()
