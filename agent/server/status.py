"""Reports of this machine: info, capabilities, status."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from agent import __version__
from agent.clock import monotonic, now_text
from agent.common import reason
from agent.errors import AgentError
from agent.fence import Fence
from agent.identity import Identity, read_machine_id
from agent.running import EngineInstances
from agent.server.seq import Sequence
from agent.telemetry import gpu
from agent.wire.base import PROTOCOL_VERSIONS
from agent.wire.capability import AgentInfo, Capabilities
from agent.wire.errors import AgentCode
from agent.wire.status import GpuStatus, HostStatus, NodeStatus

log = logging.getLogger(__name__)

T = TypeVar("T")

TELEMETRY_SECONDS = 4.0
CAPABILITIES_SECONDS = 30.0
TELEMETRY_FRESH_SECONDS = 1.0
"""Readers within this time share one reading, so that many cost no more than one."""


@dataclass(frozen=True)
class Probes:
    """Functions that read the machine. Each may be slow, and none is trusted to return."""

    host: Callable[[], Awaitable[HostStatus]]
    gpus: Callable[[], Awaitable[tuple[GpuStatus, ...]]]
    capabilities: Callable[[], Awaitable[Capabilities]]
    background: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Continuous measurement, until it is cancelled."""


@dataclass(frozen=True)
class _Reading:
    at: float
    host: HostStatus
    gpus: tuple[GpuStatus, ...]
    warnings: tuple[str, ...]


class Reporter:
    """Builds the messages that describe this machine. Unreadable values are unknown, with a warning."""

    def __init__(self, probes: Probes, instances: EngineInstances, fence: Fence, sequence: Sequence) -> None:
        self._probes = probes
        self._instances = instances
        self._fence = fence
        self._sequence = sequence
        self._machine_id_hash = read_machine_id()
        self._reading: _Reading | None = None
        self._capabilities: Capabilities | None = None
        self._probing = asyncio.Lock()

    def info(self, identity: Identity) -> AgentInfo:
        """Return everything that is reported before approval."""
        return AgentInfo(
            node_id=identity.node_id,
            node_uid=identity.node_uid,
            agent_version=__version__,
            protocol_versions=PROTOCOL_VERSIONS,
            boot_id=self._sequence.boot_id,
            held_claim=self._fence.held,
            machine_id_hash=self._machine_id_hash,
            cert_not_after=identity.not_after,
            spki_sha256=identity.spki,
            trust_bundle_hash=identity.trust_bundle_hash,
            time=now_text(),
        )

    async def capabilities(self) -> Capabilities:
        """Read the capabilities of the machine. Raises AgentError INTERNAL when they cannot be read."""
        async with self._probing:
            self._hold_gpus()
            capabilities = await _bounded("capabilities", self._probes.capabilities(), CAPABILITIES_SECONDS)
            if capabilities is None:
                raise AgentError(
                    AgentCode.INTERNAL, "The capabilities of this machine could not be read. See the agent's log."
                )
            self._capabilities = capabilities
            self._sequence.note(capabilities)
            return capabilities

    async def status(self) -> Callable[[int], NodeStatus]:
        """Do the slow readings; the returned function completes the status at one moment, under the given number."""
        reading = await self._read()

        known = self._capabilities

        def finish(seq: int) -> NodeStatus:
            warnings = reading.warnings + self._instances.notices()
            return NodeStatus(
                boot_id=self._sequence.boot_id,
                seq=seq,
                capabilities_seq=self._sequence.capabilities_seq,
                time=now_text(),
                held_claim=self._fence.held,
                host=reading.host.model_copy(update={"draining": self._instances.drain.draining}),
                gpus=reading.gpus,
                instances=self._instances.views(),
                warnings=tuple(warnings) + (known.warnings if known else ()),
                warning_codes=reason.codes(warnings) + (known.warning_codes if known else ()),
            )

        return finish

    def _hold_gpus(self) -> None:
        """Let go of the GPUs of a drained node, or read them again."""
        gpu.let_go(self._instances.lets_go_of_gpus)

    async def _read(self) -> _Reading:
        if self._reading is not None and monotonic() - self._reading.at < TELEMETRY_FRESH_SECONDS:
            return self._reading
        self._hold_gpus()
        host, gpus = await asyncio.gather(
            _bounded("host telemetry", self._probes.host(), TELEMETRY_SECONDS),
            _bounded("GPU telemetry", self._probes.gpus(), TELEMETRY_SECONDS),
        )
        warnings = tuple(
            reason.Reason("telemetry_unreadable", f"{name} could not be read; see the agent's log")
            for name, value in (("host telemetry", host), ("GPU telemetry", gpus))
            if value is None
        )
        if gpus:
            gpus = await asyncio.to_thread(self._instances.with_owners, gpus)
        self._reading = _Reading(monotonic(), host or HostStatus(), gpus or (), warnings)
        return self._reading


async def _bounded(subject: str, probe: Awaitable[T], seconds: float) -> T | None:
    try:
        # Not wait_for: on Python 3.11 it may swallow the cancellation of its caller, and the agent would not end.
        async with asyncio.timeout(seconds):
            return await probe
    except TimeoutError:
        log.warning("no %s within %g s", subject, seconds)
    except Exception:  # drivers fail in unpredictable ways; a status without their values is better than none
        log.exception("%s could not be read", subject)
    return None
