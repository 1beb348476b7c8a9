"""What we want of a node (`LIFECYCLE`) and what is seen of it (`REACHABILITY`). Diagrams: docs/states/."""

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
