"""All instances of a node: the one door for the server."""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.admission import Starts
from agent.config import AgentConfig
from agent.deliveries import images
from agent.deliveries.base import DeliveryFailed, EngineDelivery
from agent.deliveries.docker import DockerDelivery
from agent.deliveries.process import ProcessDelivery
from agent.errors import AgentError
from agent.running import ports, recovery, room
from agent.running.endings import unwritable
from agent.running.keeper import Keeper
from agent.running.record import Record, Records
from agent.running.yard import Yard
from agent.runtimes import RUNTIMES
from agent.telemetry import memory
from agent.wire.capability import Delivery
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState, InstanceView, LaunchSpec, LogSlice

_log = logging.getLogger("mirbad.agent.instances")

_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
_MAX_TAIL = 5_000
_END_SECONDS = 20.0


@dataclass(frozen=True)
class EngineTarget:
    """Where a ready engine listens, and the key that it wants."""

    host: str
    port: int
    api_key: str
    model_id: str
    generation: int


class Instances:
    """Starts, watches and stops engines. Call `recover` before anything else.

    `changed` is called in the event loop at every change of an instance. `fleet` and `node` go into the labels of
    containers. Other deliveries may be given by tests.
    """

    def __init__(
        self,
        config: AgentConfig,
        fleet: str,
        changed: Callable[[InstanceView], None],
        *,
        node: str = "",
        deliveries: Mapping[Delivery, EngineDelivery] | None = None,
    ) -> None:
        self._yard = Yard(
            config=config,
            fleet=fleet,
            node=node,
            records=Records(config.state_dir),
            deliveries=deliveries if deliveries is not None else _deliveries(config, fleet, node),
            starts=Starts(config.max_concurrent_starts),
            changed=changed,
        )
        self._keepers: dict[str, Keeper] = {}
        self._door = asyncio.Lock()

    async def recover(self) -> None:
        """Adopt what still runs, go on with what was not begun, and say of the rest how it ended."""
        await self._look_at_gpus()
        for record in await self._yard.records.load():
            keeper = self._keeper(record)
            self._keepers[record.instance_id] = keeper
            await recovery.take_up(keeper)
        if not self._yard.records.is_copy:
            await self._take_up_strays()

    async def _take_up_strays(self) -> None:
        """Engines of this node whose records were lost."""
        known = frozenset(keeper.record.launch_id for keeper in self._keepers.values())
        for delivery in self._yard.deliveries.values():
            try:
                found = await delivery.others(known)
            except DeliveryFailed as error:
                _log.info("no look for engines without a record: %s", error)
                continue
            for one in found:
                record = recovery.record_of(one)
                if record is not None and record.instance_id not in self._keepers:
                    keeper = self._keepers[record.instance_id] = self._keeper(record)
                    await self._yard.records.save(record)
                    await recovery.take_up(keeper)

    async def _look_at_gpus(self) -> None:
        look = await memory.look(self._yard.config)
        self._yard.cards, self._yard.memory_model = look.cards, look.decision.model

    def _keeper(self, record: Record) -> Keeper:
        need = room.need_of(record.spec, None, self._yard.memory_model)
        return Keeper(record, self._yard, need, room.lanes_of(record.spec))

    async def launch(self, instance_id: str, operation_id: str, spec: LaunchSpec) -> InstanceView:
        """Start an engine and return at once; the same operation again gets the same instance.

        AgentError: INVALID_REQUEST, INSTANCE_EXISTS, SPEC_REJECTED, RUNTIME_UNAVAILABLE, SOURCE_MISSING, GPU_MISSING,
        ADMISSION_REFUSED.
        """
        if not _ID.match(instance_id):
            raise AgentError(AgentCode.INVALID_REQUEST, f"'{instance_id}' cannot be the id of an instance.")
        if (known := self._known(instance_id, operation_id)) is not None:
            return known
        runtime, config = RUNTIMES[spec.runtime], self._yard.config
        await self._require_available(spec)
        source = await asyncio.to_thread(runtime.prepare, spec, config)
        await room.require_gpus(self._yard, spec)
        async with self._door:
            if (known := self._known(instance_id, operation_id)) is not None:
                return known
            if (earlier := self._keepers.get(instance_id)) is not None:
                await earlier.wait_final()
            need = room.need_of(spec, source, self._yard.memory_model)
            lanes = room.lanes_of(spec)
            record = Record(
                instance_id=instance_id,
                operation_id=operation_id,
                spec=spec,
                api_key=secrets.token_urlsafe(32),
                rendezvous_port=await self._meeting_port(spec),
            )
            try:
                if self._yard.starts.try_take(instance_id, lanes, need):
                    await room.check(self._yard, instance_id, need, force=spec.force)
                await self._yard.records.save(record)
            except OSError as error:
                await self._let_go(record)
                raise AgentError(AgentCode.DELIVERY_FAILED, str(unwritable(error))) from error
            except BaseException:
                await self._let_go(record)
                raise
            keeper = Keeper(record, self._yard, need, lanes)
            self._keepers[instance_id] = keeper
            await asyncio.to_thread(keeper.log.path.unlink, missing_ok=True)
            self._yard.changed(keeper.view())
            keeper.begin()
            return keeper.view()

    async def _let_go(self, record: Record) -> None:
        self._yard.ports.discard(record.rendezvous_port)
        await self._yard.starts.release(record.instance_id)

    async def _meeting_port(self, spec: LaunchSpec) -> int:
        """The port at which rank 0 of a replica meets the others, kept for it; 0 for every other engine."""
        if spec.rendezvous is None or spec.rendezvous.rank != 0:
            return 0
        first, last = self._yard.config.rendezvous_ports
        try:
            port = await asyncio.to_thread(ports.choose_within, first, last, set(self._yard.ports))
        except DeliveryFailed as error:
            raise AgentError(AgentCode.PORT_UNAVAILABLE, str(error)) from error
        self._yard.ports.add(port)
        return port

    def _known(self, instance_id: str, operation_id: str) -> InstanceView | None:
        keeper = self._keepers.get(instance_id)
        if keeper is None:
            return None
        if keeper.record.operation_id == operation_id:
            return keeper.view()
        if keeper.record.is_live:
            raise AgentError(
                AgentCode.INSTANCE_EXISTS,
                f"Instance {instance_id} is {keeper.record.state} already; stop it before it is started again.",
                {"operationId": keeper.record.operation_id, "state": keeper.record.state},
            )
        return None

    async def _require_available(self, spec: LaunchSpec) -> None:
        delivery = self._yard.deliveries.get(spec.delivery)
        if delivery is None:
            raise AgentError(AgentCode.RUNTIME_UNAVAILABLE, f"This node cannot run engines as a {spec.delivery}.")
        runtime = RUNTIMES[spec.runtime]
        availability = await asyncio.to_thread(runtime.availability, self._yard.config, spec.delivery)
        if not availability.available:
            raise AgentError(
                AgentCode.RUNTIME_UNAVAILABLE,
                availability.problem or f"This node cannot run {spec.runtime} as a {spec.delivery}.",
            )
        if spec.delivery is Delivery.CONTAINER:
            images.admitted(self._yard.config, spec.image, spec.image_digest)
        if (problem := await delivery.problem()) is not None:
            raise AgentError(AgentCode.RUNTIME_UNAVAILABLE, problem)

    async def stop(self, instance_id: str, grace_seconds: float) -> InstanceView:
        """Ask an engine to end, and return at once. AgentError NOT_FOUND."""
        keeper = self._get(instance_id)
        await keeper.stop(grace_seconds)
        return keeper.view()

    async def forget(self, instance_id: str) -> None:
        """Remove the record and the log of an instance that has ended. AgentError NOT_FOUND, INSTANCE_EXISTS."""
        async with self._door:
            keeper = self._get(instance_id)
            if keeper.record.is_live:
                raise AgentError(
                    AgentCode.INSTANCE_EXISTS, f"Instance {instance_id} is {keeper.record.state}; stop it first."
                )
            await keeper.wait_final()
            await self._yard.records.remove(instance_id)
            del self._keepers[instance_id]

    def view(self, instance_id: str) -> InstanceView:
        """What is known of an instance. AgentError NOT_FOUND."""
        return self._get(instance_id).view()

    def views(self) -> tuple[InstanceView, ...]:
        """Every instance, ended ones too."""
        return tuple(keeper.view() for keeper in self._keepers.values())

    def using_folder(self, name: str) -> tuple[str, ...]:
        """Ids of the models whose engines live from the model folder `name`."""
        return tuple(
            keeper.record.spec.model_id
            for keeper in self._keepers.values()
            if keeper.record.is_live and keeper.record.spec.source and _top(keeper.record.spec.source.folder) == name
        )

    def target(self, instance_id: str) -> EngineTarget:
        """Where to send a request for it. AgentError NOT_FOUND, or NOT_READY unless it is ready or unhealthy."""
        record = self._get(instance_id).record
        if record.state not in {InstanceState.READY, InstanceState.UNHEALTHY}:
            raise AgentError(
                AgentCode.NOT_READY, f"Instance {instance_id} is {record.state}, not ready.", {"state": record.state}
            )
        return EngineTarget(record.host, record.port, record.api_key, record.spec.model_id, record.spec.generation)

    async def log(self, instance_id: str, tail: int, after: int | None) -> LogSlice:
        """The last `tail` lines, or at most so many from the place `after`. AgentError NOT_FOUND."""
        return await self._get(instance_id).read_log(max(0, min(tail, _MAX_TAIL)), after)

    async def stop_everything(self, grace_seconds: float) -> tuple[str, ...]:
        """End every engine of this state folder and wait for it; the ids of those that were ended.

        An engine that cannot be ended (its container engine is down) is waited for so long and no longer.
        """
        live = [keeper for keeper in self._keepers.values() if keeper.record.is_live]
        await asyncio.gather(*(keeper.stop(grace_seconds) for keeper in live))
        if live:
            ends = [asyncio.create_task(keeper.wait_final()) for keeper in live]
            _, late = await asyncio.wait(ends, timeout=grace_seconds + _END_SECONDS)
            for task in late:
                task.cancel()
        return tuple(keeper.record.instance_id for keeper in live if not keeper.record.is_live)

    async def close(self) -> None:
        """The agent ends; engines live on."""
        await asyncio.gather(*(keeper.close() for keeper in self._keepers.values()))
        await self._yard.prober.close()
        for delivery in self._yard.deliveries.values():
            await delivery.close()
        self._yard.records.close()
        memory.forget(self._yard.config.state_dir)

    def _get(self, instance_id: str) -> Keeper:
        keeper = self._keepers.get(instance_id)
        if keeper is None:
            raise AgentError(AgentCode.NOT_FOUND, f"This node has no instance {instance_id}.")
        return keeper


def _top(folder: str) -> str:
    return folder.split("/", 1)[0]


def _deliveries(config: AgentConfig, fleet: str, node: str) -> Mapping[Delivery, EngineDelivery]:
    """Every way in which this machine may run engines."""
    return {
        Delivery.PROCESS: ProcessDelivery(),
        Delivery.CONTAINER: DockerDelivery(config.docker_host, fleet, node),
    }
