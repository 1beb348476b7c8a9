"""What the gateway routes by: an immutable picture of keys, models, placements and nodes. Pure."""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol

from models_app.gateway.refusals import Refusal


class Reachable(Protocol):
    """Where an agent is dialled; `nodes.link.transport.Endpoint` is one. No TLS context means plain TCP.

    Equal ones may share connections, others must not.
    """

    @property
    def node_id(self) -> str:
        """The node."""

    @property
    def host(self) -> str:
        """Address or host name."""

    @property
    def port(self) -> int:
        """The agent's port."""

    @property
    def server_name(self) -> str:
        """The name that the certificate must carry."""

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """The context that knows the node's key."""

    @property
    def pins(self) -> frozenset[str]:
        """The keys that the node may show."""

    @property
    def loopback_allowed(self) -> bool:
        """Whether the node may be this machine."""


class NodeState(Enum):
    """What a node's state means for a request."""

    SERVING = "serving"
    OFFLINE = "offline"
    INCOMPATIBLE = "incompatible"
    PENDING_TAKEOVER = "pending takeover"


class RouteState(Enum):
    """What a placement's state means for a request. `COMING` is worth waiting for."""

    READY = "ready"
    COMING = "coming"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Key:
    """A key that is not revoked. `allowed` None means every model; it holds model ids and served names.

    The limits hold in each process; None is no limit.
    """

    id: int
    name: str
    allowed: frozenset[str] | None
    expires_at: datetime | None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_parallel: int | None = None

    def may_use(self, model: "Model", name: str) -> bool:
        """Whether the key is good for `model`, asked for as `name`."""
        return self.allowed is None or model.id in self.allowed or name in self.allowed


@dataclass(frozen=True, slots=True)
class Route:
    """One placement: the instance to ask, on which node."""

    placement_id: str
    model_id: str
    node_id: str
    generation: int
    state: RouteState


@dataclass(frozen=True, slots=True)
class Model:
    """A model with its routes; time-outs in seconds, `created` in seconds since 1970."""

    id: str
    names: tuple[str, ...]
    created: int
    first_byte_seconds: float
    idle_seconds: float
    wait_seconds: float
    routes: tuple[Route, ...] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """The whole picture. `keys` by SHA-256 hex, `models` by served name, `nodes` and `endpoints` by node id.

    `closed` refuses everything, before a key is looked at; `paused` refuses single models, by id.
    """

    version: int = -1
    keys: Mapping[str, Key] = field(default_factory=dict)
    models: Mapping[str, Model] = field(default_factory=dict)
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    endpoints: Mapping[str, Reachable] = field(default_factory=dict)
    closed: Refusal | None = None
    paused: Mapping[str, Refusal] = field(default_factory=dict)
    ready: Mapping[str, Sequence[Route]] = field(init=False)
    """The routes, by model id, to which requests go now: ready, on a serving node, not paused."""

    def __post_init__(self) -> None:
        ready = {}
        for model in self.models.values():
            if model.id not in self.paused and model.id not in ready:
                ready[model.id] = tuple(route for route in model.routes if self._takes(route))
        object.__setattr__(self, "ready", ready)  # worked out once, the table is frozen

    def _takes(self, route: Route) -> bool:
        return (
            route.state is RouteState.READY
            and self.nodes.get(route.node_id) is NodeState.SERVING
            and route.node_id in self.endpoints
        )
