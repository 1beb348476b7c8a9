"""The routing table: an immutable snapshot of keys, models, placements and nodes. Pure."""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol

from agent.wire.base import KEY_HEADER
from models_app.gateway.errors import GatewayError

_KEY_HEADER = KEY_HEADER.encode()


class AgentEndpoint(Protocol):
    """The address and trust of an agent; `nodes.link.transport.Endpoint` is one. No TLS context means plain TCP.

    Only equal endpoints may share connections.
    """

    @property
    def node_id(self) -> str:
        """Return the node's id."""

    @property
    def host(self) -> str:
        """Return the IP address or host name."""

    @property
    def port(self) -> int:
        """Return the agent's port."""

    @property
    def server_name(self) -> str:
        """Return the name that the node's certificate must carry."""

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context that verifies the node's key."""

    @property
    def pins(self) -> frozenset[str]:
        """Return the fingerprints of the keys that the node may present."""

    @property
    def loopback_allowed(self) -> bool:
        """Return whether the node may be this machine."""


class NodeState(Enum):
    """The effect of a node's state on requests."""

    SERVING = "serving"
    OFFLINE = "offline"
    INCOMPATIBLE = "incompatible"
    PENDING_TAKEOVER = "pending takeover"


class RouteState(Enum):
    """The effect of a placement's state on requests. `STARTING` and `RESTARTING` are worth waiting for."""

    READY = "ready"
    STARTING = "starting"
    RESTARTING = "restarting"
    DOWN = "down"
    STOPPED = "stopped"


COMING = frozenset({RouteState.STARTING, RouteState.RESTARTING})


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """An API key that is not revoked. `allowed` holds model ids; None allows every model.

    Limits apply in each process; None means no limit.
    """

    id: int
    name: str
    allowed: frozenset[str] | None
    expires_at: datetime | None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_parallel: int | None = None

    @property
    def header(self) -> tuple[bytes, bytes]:
        """Return the header that names the key to the agent; it never reaches the engine."""
        return _KEY_HEADER, b"%d" % self.id

    def may_use(self, model: "ModelEntry") -> bool:
        """Return whether the key may use `model`. Names do not count: another model may be served as this one's id."""
        return self.allowed is None or model.id in self.allowed


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """One routed placement: an engine instance on a node.

    `retry_seconds` is how long it takes until it may be ready, when the table was built; `context_length` is what its
    engine reported. None is unknown.
    """

    placement_id: str
    model_id: str
    node_id: str
    generation: int
    state: RouteState
    retry_seconds: int | None = None
    context_length: int | None = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model with its routes. Timeouts are in seconds, `created` in seconds since 1970.

    `context_length` is the tokens that one request may have, None when it is unknown. `owner` is the publisher of
    the weights, empty when it is unknown.
    """

    id: str
    names: tuple[str, ...]
    created: int
    first_byte_seconds: float
    idle_seconds: float
    wait_seconds: float
    routes: tuple[RouteEntry, ...] = ()
    context_length: int | None = None
    owner: str = ""

    @property
    def whole_seconds(self) -> float:
        """Return how long a response that is no stream may pause."""
        return max(self.first_byte_seconds, self.idle_seconds)


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """The snapshot. `keys` by SHA-256 in hex, `models` by served name, `nodes` and `endpoints` by node id.

    `placed` has (model id, node id) of every placement, routed or not, for metrics alone.
    `closed` is the error for every request, before its key is checked; `paused` holds errors by model id.
    """

    version: int = -1
    keys: Mapping[str, KeyEntry] = field(default_factory=dict)
    models: Mapping[str, ModelEntry] = field(default_factory=dict)
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    endpoints: Mapping[str, AgentEndpoint] = field(default_factory=dict)
    placed: frozenset[tuple[str, str]] = frozenset()
    closed: GatewayError | None = None
    paused: Mapping[str, GatewayError] = field(default_factory=dict)
    ready: Mapping[str, Sequence[RouteEntry]] = field(init=False)
    """The routes that take requests now, by model id: ready, on a serving node, not paused."""

    def __post_init__(self) -> None:
        ready = {}
        for model in self.models.values():
            if model.id not in self.paused and model.id not in ready:
                ready[model.id] = tuple(route for route in model.routes if self._takes(route))
        object.__setattr__(self, "ready", ready)  # computed once per table, not per request

    def _takes(self, route: RouteEntry) -> bool:
        return (
            route.state is RouteState.READY
            and self.nodes.get(route.node_id) is NodeState.SERVING
            and route.node_id in self.endpoints
        )
