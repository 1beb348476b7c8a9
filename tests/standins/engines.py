"""Engines that are only remembered: for tests of what stands in front of the real ones."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from agent.common.reason import Reason
from agent.errors import AgentError
from agent.running.drain import Drain
from agent.running.requests import EngineRequests
from agent.telemetry.usage import attribute
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState, InstanceView, LaunchSpec, LogSlice
from agent.wire.status import GpuStatus


class RememberedEngines:
    """The face of `agent.running.EngineInstances`. `gate` holds every launch back while it is clear."""

    def __init__(self, changed: Callable[[InstanceView], None]) -> None:
        self.changed = changed
        self.arrived = 0
        self.launches: list[str] = []
        self.stops: list[str] = []
        self.held: dict[str, InstanceView] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.refuse_with: AgentError | None = None
        self.folders: dict[str, tuple[str, ...]] = {}
        self.requests = EngineRequests()
        self.drain = Drain(Path("/nonexistent"))
        self.lets_go_of_gpus = False

    def with_owners(self, statuses: tuple[GpuStatus, ...]) -> tuple[GpuStatus, ...]:
        return attribute(statuses, self.views())

    def notices(self) -> tuple[Reason, ...]:
        return ()

    async def recover(self) -> None:
        pass

    async def launch(self, instance_id: str, operation_id: str, spec: LaunchSpec) -> InstanceView:
        self.arrived += 1
        await self.gate.wait()
        self.launches.append(operation_id)
        if self.refuse_with is not None:
            raise self.refuse_with
        return self.put(
            InstanceView(
                instance_id=instance_id,
                model_id=spec.model_id,
                generation=spec.generation,
                config_hash=spec.config_hash,
                operation_id=operation_id,
                runtime=spec.runtime,
                delivery=spec.delivery,
                state=InstanceState.STARTING,
            )
        )

    def put(self, view: InstanceView) -> InstanceView:
        self.held[view.instance_id] = view
        self.changed(view)
        return view

    def move(self, instance_id: str, state: InstanceState) -> InstanceView:
        return self.put(self.view(instance_id).model_copy(update={"state": state}))

    async def stop(self, instance_id: str, grace_seconds: float) -> InstanceView:
        self.stops.append(instance_id)
        return self.move(instance_id, InstanceState.STOPPING)

    async def forget(self, instance_id: str) -> None:
        self.view(instance_id)
        del self.held[instance_id]

    def view(self, instance_id: str) -> InstanceView:
        if instance_id not in self.held:
            raise AgentError(AgentCode.NOT_FOUND, f"no instance {instance_id}")
        return self.held[instance_id]

    def using_folder(self, name: str) -> tuple[str, ...]:
        return self.folders.get(name, ())

    def views(self) -> tuple[InstanceView, ...]:
        return tuple(self.held.values())

    async def log(self, instance_id: str, tail: int, after: int | None, run: int = 0) -> LogSlice:
        self.view(instance_id)
        return LogSlice(lines=(f"tail={tail} after={after} run={run}",), next=7)

    async def close(self) -> None:
        pass
