"""Desired states of a node (`LIFECYCLE`) and observed ones (`REACHABILITY`). Diagrams: docs/states/."""

from mirbad.kernel.states import StateTable

PENDING = "pending"
APPROVED = "approved"
REVOKED = "revoked"

LIFECYCLE = StateTable(
    "node lifecycle",
    {
        PENDING: frozenset({APPROVED, REVOKED}),
        APPROVED: frozenset({REVOKED}),
        REVOKED: frozenset(),
    },
)

UNKNOWN = "unknown"
ONLINE = "online"
OFFLINE = "offline"
INCOMPATIBLE = "incompatible"
FENCED = "fenced"

_OBSERVED = frozenset({UNKNOWN, ONLINE, OFFLINE, INCOMPATIBLE, FENCED})
REACHABILITY = StateTable(
    "node reachability",
    {
        UNKNOWN: _OBSERVED - {UNKNOWN},
        ONLINE: _OBSERVED,
        OFFLINE: _OBSERVED,
        INCOMPATIBLE: _OBSERVED,
        FENCED: _OBSERVED,
    },
)

RE_PAIR = "ca_rotation_stranded"
"""The code of the condition of a node whose certificate is of a CA that is gone; shown while the node is Offline, too.
"""

CA_STARTED = "Started"
CA_AGENTS_TRUSTING = "AgentsTrusting"
CA_MASTER_REISSUED = "MasterReissued"
CA_AGENTS_ROTATING = "AgentsRotating"
CA_CLOSING = "Closing"
CA_ROLLING_BACK = "RollingBack"
CA_CLOSED = "Closed"
CA_CLOSED_EARLY = "ClosedEarly"
CA_ROLLED_BACK = "RolledBack"
CA_REPLACED = "Replaced"

CA_ROTATION = StateTable(
    "CA rotation",
    {
        CA_STARTED: frozenset({CA_AGENTS_TRUSTING, CA_ROLLING_BACK, CA_REPLACED}),
        CA_AGENTS_TRUSTING: frozenset({CA_MASTER_REISSUED, CA_ROLLING_BACK, CA_REPLACED}),
        CA_MASTER_REISSUED: frozenset({CA_AGENTS_ROTATING, CA_ROLLING_BACK, CA_REPLACED}),
        CA_AGENTS_ROTATING: frozenset({CA_CLOSING, CA_ROLLING_BACK, CA_REPLACED}),
        CA_CLOSING: frozenset({CA_CLOSED, CA_CLOSED_EARLY, CA_REPLACED}),
        CA_ROLLING_BACK: frozenset({CA_ROLLED_BACK, CA_REPLACED}),
        CA_CLOSED: frozenset(),
        CA_CLOSED_EARLY: frozenset(),
        CA_ROLLED_BACK: frozenset(),
        CA_REPLACED: frozenset(),
    },
)
