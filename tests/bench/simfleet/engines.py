"""The engine of a simulated agent: it is ready, and is unhealthy for a moment now and then."""

import random
from collections.abc import Callable
from pathlib import Path

from agent.clock import now_text
from agent.config import AgentConfig
from agent.errors import AgentError
from agent.identity import Identity
from agent.running import EngineInstances, EngineTarget
from agent.running.drain import Drain
from agent.running.requests import EngineRequests
from agent.telemetry.usage import attribute
from agent.wire.capability import Delivery, Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState, InstanceView
from agent.wire.status import GpuStatus
from tests.bench.simfleet.plan import Member

Changed = Callable[[InstanceView], None]


class SimInstances(EngineInstances):
    """One instance that nobody launched; every call that would need a machine is refused."""

    def __init__(self, member: Member, changed: Changed) -> None:
        self._changed = changed
        self._requests = EngineRequests()
        self.drain = Drain(Path("/nonexistent"))
        self._view: InstanceView | None = None
        if member.instance_id:
            self._view = InstanceView(
                instance_id=member.instance_id,
                model_id=member.model_id,
                generation=1,
                config_hash="0" * 64,
                operation_id="01J00000000000000000000000",
                runtime=Runtime.SIM,
                delivery=Delivery.PROCESS,
                state=InstanceState.READY,
                started_at=now_text(),
                ready_at=now_text(),
                start_seconds=1.5,
                pid=4242,
                memory_bytes=2**30,
            )

    @property
    def requests(self) -> EngineRequests:
        """The relayed requests; none ever come."""
        return self._requests

    @property
    def has_instance(self) -> bool:
        """True while an instance runs here."""
        return self._view is not None

    def change(self) -> None:
        """Ready becomes unhealthy, and the other way round; listeners are told."""
        if self._view is None:
            return
        state = InstanceState.UNHEALTHY if self._view.state is InstanceState.READY else InstanceState.READY
        self._view = self._view.model_copy(update={"state": state, "memory_bytes": random.randrange(2**30)})
        self._changed(self._view)

    @property
    def lets_go_of_gpus(self) -> bool:
        """False: there are no GPUs."""
        return False

    def with_owners(self, statuses: tuple[GpuStatus, ...]) -> tuple[GpuStatus, ...]:
        """Return the statuses with the running instance on each GPU."""
        return attribute(statuses, self.views())

    async def recover(self) -> None:
        """Nothing to adopt."""

    async def close(self) -> None:
        """Nothing to let go of."""

    def views(self) -> tuple[InstanceView, ...]:
        """Return the view of the running instance, if any."""
        return () if self._view is None else (self._view,)

    def view(self, instance_id: str) -> InstanceView:
        """One instance."""
        for view in self.views():
            if view.instance_id == instance_id:
                return view
        raise AgentError(AgentCode.NOT_FOUND, f"there is no instance {instance_id}")

    def target(self, instance_id: str) -> EngineTarget:
        """No traffic reaches a simulated engine."""
        raise AgentError(AgentCode.NOT_READY, "a simulated engine takes no traffic")


def maker(member: Member, made: list[SimInstances]) -> Callable[[AgentConfig, Identity, Changed], EngineInstances]:
    """Return the factory by which the agent's server makes its engines; `made` gets them, too."""

    def make(config: AgentConfig, identity: Identity, changed: Changed) -> EngineInstances:
        engines = SimInstances(member, changed)
        made.append(engines)
        return engines

    return make
