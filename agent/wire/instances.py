"""Engines on a node: what to launch, and what is seen of it."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, SecretStr, field_serializer

from agent.wire.base import WireModel
from agent.wire.capability import Delivery, Runtime


class InstanceState(StrEnum):
    """What the agent sees of an instance. `EXITED` and `LOST` are final; their record stays."""

    PREPARING = "preparing"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    STOPPING = "stopping"
    EXITED = "exited"
    LOST = "lost"


LIVE_STATES = frozenset(
    {
        InstanceState.PREPARING,
        InstanceState.STARTING,
        InstanceState.LOADING,
        InstanceState.READY,
        InstanceState.UNHEALTHY,
        InstanceState.STOPPING,
    }
)
"""States in which a process or container may exist."""


class SourceSpec(WireModel):
    """Where the weights are: a folder under the models root, and the file in it for a GGUF. Relative, no ``..``."""

    folder: str = Field(max_length=255)
    file: str | None = Field(default=None, max_length=512)


class Rendezvous(WireModel):
    """How the shards of one replica find each other: all meet at `address` and `port`, where rank 0 listens.

    `meeting` is the same for all shards of one start and for no others. `port` is None for rank 0, whose agent chooses
    one and tells it in the `InstanceView`. `adapters` are this node's on the fabric.
    """

    meeting: str = Field(max_length=128)
    rank: Annotated[int, Field(ge=0, le=1023)]
    world_size: Annotated[int, Field(ge=2, le=1024)]
    address: str = Field(max_length=255)
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    fabric: str = Field(default="", max_length=40)
    adapters: tuple[str, ...] = ()


class LaunchSpec(WireModel):
    """``PUT /agent/v1/instances/{instanceId}``: run this. The operation id travels in the header.

    `served_names` are the names that the engine answers to, the first is the main one. `secret_env` holds values that
    must reach the engine and nothing else. Memory budgets are bytes; None lets the agent estimate. Reserves (bytes that
    models leave alone, of the host and by GPU UUID) and the limit of starts at once are the node's settings.
    """

    model_id: str
    generation: Annotated[int, Field(ge=0)]
    config_hash: str
    runtime: Runtime
    delivery: Delivery
    served_names: Annotated[tuple[str, ...], Field(min_length=1)]
    source: SourceSpec | None = None
    image: str | None = None
    image_digest: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    secret_env: dict[str, SecretStr] = {}
    gpu_uuids: tuple[str, ...] = ()
    gpu_memory_budget_bytes: Annotated[int, Field(ge=0)] | None = None
    host_memory_budget_bytes: Annotated[int, Field(ge=0)] | None = None
    context_length: Annotated[int, Field(ge=1)] | None = None
    start_timeout_seconds: Annotated[int, Field(ge=1)] = 1800
    host_reserve_bytes: Annotated[int, Field(ge=0)] | None = None
    gpu_reserve_bytes: dict[str, Annotated[int, Field(ge=0)]] = {}
    max_concurrent_starts: Annotated[int, Field(ge=1)] | None = None
    allow_pickle: bool = False
    force: bool = False
    rendezvous: Rendezvous | None = None

    @field_serializer("secret_env", when_used="json")
    def _reveal(self, value: dict[str, SecretStr]) -> dict[str, str]:
        return {name: secret.get_secret_value() for name, secret in value.items()}


class PullProgress(WireModel):
    """Bytes of an image pull or a download while it runs; None is unknown."""

    done_bytes: int | None = None
    total_bytes: int | None = None
    text: str = ""


class InstanceView(WireModel):
    """What the agent knows of an instance. Times are RFC 3339 in UTC; `reason` is a sentence for a person.

    `open_requests` are those that the relay has at work for it; only an answer about this one instance tells them.
    """

    instance_id: str
    model_id: str
    generation: Annotated[int, Field(ge=0, lt=2**31)]
    config_hash: Annotated[str, Field(max_length=64)]
    operation_id: str
    runtime: Runtime
    delivery: Delivery
    state: InstanceState
    reason: str | None = None
    reason_code: str | None = None
    progress: PullProgress | None = None
    started_at: str | None = None
    ready_at: str | None = None
    start_seconds: float | None = None
    exited_at: str | None = None
    exit_code: int | None = None
    stop_requested: bool = False
    last_lines: tuple[str, ...] = ()
    pid: int | None = None
    container_id: str | None = None
    image_digest: str | None = None
    memory_bytes: int | None = None
    gpu_uuids: tuple[str, ...] = ()
    open_requests: int | None = None
    rendezvous_port: int | None = None


class StopRequest(WireModel):
    """``POST /agent/v1/instances/{instanceId}/stop``: ask politely, then end it after the grace."""

    grace_seconds: Annotated[float, Field(ge=0, le=600)] = 10.0


class Forgotten(WireModel):
    """``DELETE /agent/v1/instances/{instanceId}``: the record is gone, now or before."""

    instance_id: str


class LogSlice(WireModel):
    """``GET /agent/v1/instances/{instanceId}/log?tail=&after=``. `next` is given back as ``after`` to read on."""

    lines: tuple[str, ...]
    next: int
    truncated: bool = False
