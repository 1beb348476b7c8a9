"""Engines on a node: launch specs, and their observed state."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, SecretStr, field_serializer

from agent.wire.base import WireModel
from agent.wire.capability import Delivery, Runtime


class InstanceState(StrEnum):
    """The observed state of an instance. `EXITED` and `LOST` are final; their record stays."""

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
    """The location of weights: a folder below the models root, and the file in it for a GGUF. Relative, no ``..``.

    `projector` is the file in the folder that reads pictures or sound for a GGUF; ``none`` runs the model without, and
    None leaves the choice to the agent.
    """

    folder: str = Field(max_length=255)
    file: str | None = Field(default=None, max_length=512)
    projector: str | None = Field(default=None, max_length=512)


class Rendezvous(WireModel):
    """The point where the shards of one replica connect: `address` and `port`, where rank 0 listens.

    `meeting` is the same for all shards of one start and for no others. `port` is None for rank 0, whose agent chooses
    one and reports it in the `InstanceView`. `adapters` are this node's on the fabric.
    """

    meeting: str = Field(max_length=128)
    rank: Annotated[int, Field(ge=0, le=1023)]
    world_size: Annotated[int, Field(ge=2, le=1024)]
    address: str = Field(max_length=255)
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    fabric: str = Field(default="", max_length=40)
    adapters: tuple[str, ...] = ()


class MemoryEstimate(WireModel):
    """The master's estimate of the memory that an engine takes. None is unknown.

    `gpu_bytes` are taken of each GPU, `gpu_least_bytes` with the shortest context that the engine would choose itself.
    `fraction` is the part of each card, or without cards of the host, that the engine takes whatever it needs.
    """

    host_bytes: Annotated[int, Field(ge=0)] | None = None
    gpu_bytes: Annotated[int, Field(ge=0)] | None = None
    gpu_least_bytes: Annotated[int, Field(ge=0)] | None = None
    fraction: Annotated[float, Field(ge=0, le=1)] | None = None


class LaunchSpec(WireModel):
    """``PUT /agent/v1/instances/{instanceId}``: run this. The operation id is in the header.

    `served_names` are the names of the model at the engine, the main one first. `secret_env` holds values that only the
    engine may receive. Memory budgets are bytes and go before `estimate`; without both the agent counts the weights of
    an engine on the host. Reserves (bytes that models may not use, of the host and by GPU UUID) and the limit of
    concurrent starts are settings of the node.
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
    estimate: MemoryEstimate | None = None
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
    """Bytes of an image pull or a download in progress; None is unknown."""

    done_bytes: int | None = None
    total_bytes: int | None = None
    text: str = ""


class BrokenRequest(WireModel):
    """A relayed request that an engine had when it ended. `key_id` is that of the API key, None when unknown."""

    request_id: Annotated[str, Field(max_length=128)] = ""
    key_id: Annotated[int, Field(ge=0, lt=2**63)] | None = None


class EarlierRun(WireModel):
    """An earlier run of an instance. `run` selects its log: 1 is the run before the present one."""

    run: Annotated[int, Field(ge=1, le=9)]
    started_at: str | None = None
    exited_at: str | None = None
    exit_code: int | None = None
    exit_signal: str | None = None
    reason: str | None = None


class InstanceView(WireModel):
    """The state of an instance at the agent. Times are RFC 3339 in UTC; `reason` is a sentence for a person.

    `open_requests` counts the relayed requests in progress; only a response about this one instance contains it.
    `context_length` is the tokens that one request may have, as the engine reports it. `broken_requests` are those that
    the engine had when it ended, `exit_signal` the name of the signal that ended it.
    `notice` is a sentence about an engine that serves, but not as it was asked to; `notice_code` is for programs.
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
    notice: Annotated[str, Field(max_length=500)] | None = None
    notice_code: Annotated[str, Field(max_length=40)] | None = None
    progress: PullProgress | None = None
    started_at: str | None = None
    ready_at: str | None = None
    start_seconds: float | None = None
    context_length: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    exited_at: str | None = None
    exit_code: int | None = None
    exit_signal: Annotated[str, Field(max_length=20)] | None = None
    broken_requests: tuple[BrokenRequest, ...] = ()
    earlier_runs: tuple[EarlierRun, ...] = ()
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
    """``POST /agent/v1/instances/{instanceId}/stop``: terminate, and kill after the grace period."""

    grace_seconds: Annotated[float, Field(ge=0, le=600)] = 10.0


class InstanceForgotten(WireModel):
    """``DELETE /agent/v1/instances/{instanceId}``: the record is deleted, now or before."""

    instance_id: str


class LogSlice(WireModel):
    """``GET /agent/v1/instances/{instanceId}/log?tail=&after=&run=``. Pass `next` as ``after`` to continue."""

    lines: tuple[str, ...]
    next: int
    truncated: bool = False
