"""Errors of the nodes app.

MirbadError
├── Conflict
│   ├── NodeRevoked              409 node_revoked
│   ├── NodeDraining             409 node_draining
│   ├── ConfirmationRequired     409 confirmation_required
│   └── PinChanged               409 invalid_state (enrolled again with another key)
├── Unavailable
│   ├── NodeOffline              503 node_offline
│   │   └── NodeTurnedAway       503 node_offline (it closed the connection)
│   ├── NodeIncompatible         503 node_incompatible
│   └── NodePendingTakeover      503 node_pending_takeover
├── MasterFenced                 409 master_fenced
├── EnrollmentRefused            403 enrollment_refused
├── RateLimited                  429 rate_limited
└── AgentRefused                 the agent's own code and status
"""

from collections.abc import Mapping
from typing import Any

from mirbad.kernel.errors import Conflict, MirbadError, NotFound, Unavailable


class NodeRevoked(Conflict):
    """The node is revoked; its id and key cannot be used again."""

    code = "node_revoked"


class NodeDraining(Conflict):
    """The node accepts no new models."""

    code = "node_draining"


class ConfirmationRequired(Conflict):
    """The confirmation text does not match."""

    code = "confirmation_required"


class PinChanged(Conflict):
    """The node enrolled again with another key since the operator looked."""


class NodeOffline(Unavailable):
    """The node cannot be reached now."""

    code = "node_offline"


class NodeTurnedAway(NodeOffline):
    """The node was reached and hung up before it responded: it may not accept the certificate presented to it."""


class NodeIncompatible(Unavailable):
    """Master and agent have no protocol in common, or the agent is another node than the expected one."""

    code = "node_incompatible"


class NodePendingTakeover(Unavailable):
    """The node obeys another claim; a takeover or continuation is needed."""

    code = "node_pending_takeover"


class MasterFenced(Conflict):
    """An agent refused this master's claim; the master commands nothing until a takeover."""

    code = "master_fenced"


class ModelsRootChanged(Conflict):
    """The disk with the node's models is not mounted, or another one is in its place."""

    code = "models_root_changed"


class EnrollmentRefused(MirbadError):
    """The single response of the enroll listener to every wrong token, id, purpose or key."""

    code = "enrollment_refused"
    http_status = 403


class RateLimited(MirbadError):
    """Too many attempts."""

    code = "rate_limited"
    http_status = 429


class AgentRefused(MirbadError):
    """The agent refused the call. `agent_code` is its `agent.wire.errors.AgentCode` value."""

    code = "agent_refused"
    http_status = 502

    def __init__(self, agent_code: str, status: int, detail: str, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail, fields=fields)
        self.agent_code = agent_code
        self.agent_status = status


def no_such_node(node_id: str) -> NotFound:
    """Return the error for an id that no node has."""
    return NotFound(f"Node {node_id} not found.")
