"""The interface between a runtime and the rest of the agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agent.config import AgentConfig
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import LaunchSpec

GIB = 1024**3
MIB = 1024**2


@dataclass(frozen=True)
class WeightsSource:
    """Weights on this machine. `path` is the argument of the engine: the folder, or one file in it.

    `mounts` are the real paths that a container needs, each mounted read-only at the same path; `size_bytes` counts the
    files that the engine will load; `safetensors` is true when it can load safetensors from them. `projector` is the
    file that reads pictures or sound for a GGUF, None without one.
    """

    path: Path
    mounts: tuple[Path, ...]
    size_bytes: int
    safetensors: bool = False
    projector: Path | None = None


@dataclass(frozen=True)
class LocalRendezvous:
    """The rendezvous of one shard with the others of its replica: rank 0 listens at `address` and `port`.

    `own_address` and `interface` are this machine's on the route there, None when unknown. `devices` are its InfiniBand
    adapters on the fabric, `interfaces` its network interfaces.
    """

    name: str
    rank: int
    world_size: int
    address: str
    port: int
    own_address: str | None = None
    interface: str | None = None
    devices: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Allocation:
    """The share of the node that one engine gets: its address, key, threads and weights.

    `rendezvous` is for one shard of several; `card_fraction` is its budget as a fraction of each card's memory, None
    for all of it.
    """

    host: str
    port: int
    api_key: str
    threads: int
    source: WeightsSource | None
    rendezvous: LocalRendezvous | None = None
    card_fraction: float | None = None


@dataclass(frozen=True)
class EngineCommand:
    """Command line of an engine. For a container `argv` follows `entrypoint`, None for the image's own."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Availability:
    """Availability of a runtime with one delivery on this node; `problem` is a sentence with the next step."""

    available: bool
    version: str | None = None
    problem: str | None = None


class EngineRuntime(Protocol):
    """One engine: its availability, the check of a spec, and the command line."""

    @property
    def name(self) -> Runtime:
        """Name on the wire."""
        ...

    @property
    def health_path(self) -> str:
        """HTTP path that returns 200 when the engine is ready."""
        ...

    @property
    def report_path(self) -> str:
        """HTTP path at which a ready engine says how long the context of a request is."""
        ...

    def context_in(self, report: Any) -> object:
        """Return the value in that report. Raises KeyError, IndexError, TypeError or AttributeError without one."""
        ...

    @property
    def key_variable(self) -> str:
        """Environment variable that holds the engine's key."""
        ...

    @property
    def closes_after_stream(self) -> bool:
        """True when the engine closes a connection after a stream without `Connection: close` in its response."""
        ...

    @property
    def container_port(self) -> int:
        """Port on which the engine listens inside a container."""
        ...

    def availability(self, config: AgentConfig, delivery: Delivery) -> Availability:
        """Return whether it can run here. The container engine itself is not checked."""
        ...

    def prepare(self, spec: LaunchSpec, config: AgentConfig) -> WeightsSource | None:
        """Check the spec and find its weights. AgentError SPEC_REJECTED or SOURCE_MISSING; blocking."""
        ...

    def command(self, spec: LaunchSpec, config: AgentConfig, allocation: Allocation) -> EngineCommand:
        """Return the command line for a spec that `prepare` accepted."""
        ...

    def has_health_endpoint(self, spec: LaunchSpec) -> bool:
        """Return whether the engine can be probed over HTTP; a headless shard cannot."""
        ...

    def uses_gpus(self, spec: LaunchSpec, config: AgentConfig) -> bool:
        """Return whether the program has GPU code, as far as that can be known without running it."""
        ...

    def host_memory_bytes(self, spec: LaunchSpec, source: WeightsSource | None) -> int | None:
        """Estimate the host memory that the engine will use; None when unknown."""
        ...
