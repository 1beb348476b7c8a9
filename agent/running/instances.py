"""All engine instances of a node, as the server uses them."""

import asyncio
import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from agent import clock
from agent.admission import StartSlots
from agent.common.reason import Reason
from agent.config import AgentConfig
from agent.deliveries import images
from agent.deliveries.base import DeliveryFailed, EngineDelivery
from agent.deliveries.docker import DockerDelivery
from agent.deliveries.process import ProcessDelivery
from agent.errors import AgentError
from agent.running import capacity, gpu_use, ports, recovery, weights
from agent.running.context import EngineContext
from agent.running.drain import Drain
from agent.running.endings import state_unwritable
from agent.running.record import InstanceRecord, RecordStore
from agent.running.requests import EngineRequests
from agent.running.supervisor import EngineSupervisor
from agent.runtimes import RUNTIMES
from agent.telemetry import gpu, memory, usage
from agent.telemetry.memory import GpuReading
from agent.wire.capability import Delivery
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState, InstanceView, LaunchSpec, LogSlice
from agent.wire.status import GpuStatus

_log = logging.getLogger("mirbad.agent.instances")

_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
_MAX_TAIL = 5_000
_STOP_ALL_SECONDS = 20.0
_FIRST_READING_SECONDS = 2.0
_GPU_RETRY_SECONDS = 5.0
_SEARCH_SECONDS = 30.0


@dataclass(frozen=True)
class EngineTarget:
    """Address of a ready engine, and the key that it requires.

    `closes_after_stream`: it closes a connection after a chunked response without a word.
    """

    host: str
    port: int
    api_key: str
    model_id: str
    generation: int
    closes_after_stream: bool = False


class EngineInstances:
    """Starts, watches and stops engines. Call `recover` before anything else.

    `changed` is called in the event loop at every change of an instance. `fleet` and `node` become labels of
    containers. Tests may pass other deliveries.
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
        self._context = EngineContext(
            config=config,
            fleet=fleet,
            node=node,
            records=RecordStore(config.state_dir),
            deliveries=deliveries if deliveries is not None else _deliveries(config, fleet, node),
            start_slots=StartSlots(config.max_concurrent_starts),
            changed=changed,
        )
        self._supervisors: dict[str, EngineSupervisor] = {}
        self._lock = asyncio.Lock()
        self.drain = Drain(config.state_dir)
        self._first_reading: asyncio.Task[None] | None = None
        self._late_search: asyncio.Task[None] | None = None
        self._context.requests.on_broken = self._look_now

    @property
    def requests(self) -> EngineRequests:
        """The relayed requests of these engines; the relay writes them."""
        return self._context.requests

    def _look_now(self, instance_id: str) -> None:
        supervisor = self._supervisors.get(instance_id)
        if supervisor is not None:
            supervisor.look_now()

    async def recover(self) -> None:
        """Adopt running engines, continue starts that did not begin, and close the records of the rest."""
        # The agent listens before a slow driver has answered.
        self._context.memory_model = memory.before_reading(self._context.config)
        gpu.let_go(self.drain.draining)
        self._first_reading = asyncio.create_task(self._read_first_gpus(), name="first reading of the GPUs")
        await asyncio.wait((self._first_reading,), timeout=_FIRST_READING_SECONDS)
        for record in await self._context.records.load():
            self._supervisors[record.instance_id] = self._supervisor(record)
        # Before the rest: an older record must not start a second engine beside the one that runs.
        silent = set() if self._context.records.is_copy else await self._adopt_unrecorded(self._context.deliveries)
        for supervisor in tuple(self._supervisors.values()):
            if supervisor.is_idle:
                await recovery.resume(supervisor)
        if silent:
            self._late_search = asyncio.create_task(self._search_later(silent), name="engines without a record")

    async def _search_later(self, silent: set[Delivery]) -> None:
        """Search again for engines without a record where the search failed, until it has succeeded."""
        while silent:
            await asyncio.sleep(_SEARCH_SECONDS)
            async with self._lock:
                silent = await self._adopt_unrecorded(silent)

    async def _adopt_unrecorded(self, where: Iterable[Delivery]) -> set[Delivery]:
        """Adopt engines of this node whose records were lost. Return the deliveries that could not be searched."""
        known = frozenset(supervisor.record.launch_id for supervisor in self._supervisors.values())
        silent = set()
        for name in where:
            try:
                found = await self._context.deliveries[name].find_unrecorded(known)
            except DeliveryFailed as error:
                _log.info("cannot search for engines without a record: %s", error)
                silent.add(name)
                continue
            for engine in found:
                await self._adopt(recovery.record_from(engine))
        return silent

    async def _adopt(self, record: InstanceRecord) -> None:
        earlier = self._supervisors.get(record.instance_id)
        if earlier is not None and (not earlier.is_idle or await recovery.is_running(earlier)):
            # Two engines of one instance: this one keeps running under a name of its own until somebody stops it.
            record.instance_id = f"{record.instance_id[:100]}.{record.launch_id[:8]}"
        elif earlier is not None:
            record.earlier_runs = earlier.record.runs
        _log.warning("instance %s: its record was lost; found the engine (%s)", record.instance_id, record.launch_id)
        supervisor = self._supervisors[record.instance_id] = self._supervisor(record)
        try:
            await self._context.records.save(record)
        except OSError:
            _log.exception("instance %s: the record cannot be written", record.instance_id)
        await recovery.resume(supervisor)

    async def _read_first_gpus(self) -> None:
        """Read the GPUs until their driver has answered."""
        while (await self._read_gpus()).problem is not None:  # noqa: ASYNC110 - no event says that a driver is ready
            await asyncio.sleep(_GPU_RETRY_SECONDS)

    async def _read_gpus(self) -> GpuReading:
        reading = await memory.read(self._context.config)
        if reading.problem is None or reading.decision.is_final:
            self._context.memory_model = reading.decision.model
        self._context.cards = reading.cards
        for supervisor in self._supervisors.values():
            record = supervisor.record
            supervisor.need = capacity.need_for(record.spec, None, self._context.memory_model)
        return reading

    def _supervisor(self, record: InstanceRecord) -> EngineSupervisor:
        need = capacity.need_for(record.spec, None, self._context.memory_model)
        return EngineSupervisor(record, self._context, need, capacity.slots_for(record.spec))

    async def launch(self, instance_id: str, operation_id: str, spec: LaunchSpec) -> InstanceView:
        """Start an engine and return at once; the same operation again gets the same instance.

        AgentError: INVALID_REQUEST, INSTANCE_EXISTS, SPEC_REJECTED, RUNTIME_UNAVAILABLE, SOURCE_MISSING, GPU_MISSING,
        ADMISSION_REFUSED, PORT_UNAVAILABLE.
        """
        if not _ID.match(instance_id):
            raise AgentError(AgentCode.INVALID_REQUEST, f"'{instance_id}' is not a valid instance id.")
        if (known := self._known(instance_id, operation_id)) is not None:
            return known
        config = self._context.config
        await self._require_available(spec)
        source = await weights.find(spec, config)
        await capacity.require_gpus(self._context, spec)
        await self._read_gpus()
        async with self._lock:
            if (known := self._known(instance_id, operation_id)) is not None:
                return known
            if (earlier := self._supervisors.get(instance_id)) is not None:
                await earlier.wait_final()
            need = capacity.need_for(spec, source, self._context.memory_model)
            slots = capacity.slots_for(spec)
            record = InstanceRecord(
                instance_id=instance_id,
                operation_id=operation_id,
                spec=spec,
                api_key=secrets.token_urlsafe(32),
                rendezvous_port=await self._rendezvous_port(spec),
                earlier_runs=earlier.record.runs if earlier is not None else (),
            )
            try:
                if self._context.start_slots.try_take(instance_id, slots, need):
                    await capacity.check(self._context, instance_id, need, force=spec.force)
                await self._context.records.save(record)
            except OSError as error:
                await self._release(record)
                raise AgentError(AgentCode.DELIVERY_FAILED, str(state_unwritable(error))) from error
            except BaseException:
                await self._release(record)
                raise
            supervisor = EngineSupervisor(record, self._context, need, slots)
            self._supervisors[instance_id] = supervisor
            await supervisor.log.begin_run(earlier.log.file if earlier is not None else None)
            self._context.changed(supervisor.view())
            supervisor.begin()
            return supervisor.view()

    async def _release(self, record: InstanceRecord) -> None:
        self._context.ports.discard(record.rendezvous_port)
        await self._context.start_slots.release(record.instance_id)

    async def _rendezvous_port(self, spec: LaunchSpec) -> int:
        """Reserve the port on which rank 0 of a replica meets the others; 0 for every other engine."""
        if spec.rendezvous is None or spec.rendezvous.rank != 0:
            return 0
        first, last = self._context.config.rendezvous_ports
        try:
            port = await asyncio.to_thread(ports.choose_within, first, last, set(self._context.ports))
        except DeliveryFailed as error:
            raise AgentError(AgentCode.PORT_UNAVAILABLE, str(error)) from error
        self._context.ports.add(port)
        return port

    def _known(self, instance_id: str, operation_id: str) -> InstanceView | None:
        supervisor = self._supervisors.get(instance_id)
        if supervisor is None:
            return None
        if supervisor.record.operation_id == operation_id:
            return supervisor.view()
        if supervisor.record.is_live:
            raise AgentError(
                AgentCode.INSTANCE_EXISTS,
                f"Instance {instance_id} is already {supervisor.record.state}. Stop it before you start it again.",
                {"operationId": supervisor.record.operation_id, "state": supervisor.record.state},
            )
        return None

    async def _require_available(self, spec: LaunchSpec) -> None:
        delivery = self._context.deliveries.get(spec.delivery)
        if delivery is None:
            raise AgentError(
                AgentCode.RUNTIME_UNAVAILABLE, f"This node cannot run engines with the delivery '{spec.delivery}'."
            )
        runtime = RUNTIMES[spec.runtime]
        availability = await asyncio.to_thread(runtime.availability, self._context.config, spec.delivery)
        if not availability.available:
            raise AgentError(
                AgentCode.RUNTIME_UNAVAILABLE,
                availability.problem or f"This node cannot run {spec.runtime} with the delivery '{spec.delivery}'.",
            )
        if spec.delivery is Delivery.CONTAINER:
            images.admitted(self._context.config, spec.image, spec.image_digest)
        if (problem := await delivery.problem()) is not None:
            raise AgentError(AgentCode.RUNTIME_UNAVAILABLE, problem)

    async def stop(self, instance_id: str, grace_seconds: float) -> InstanceView:
        """Request the stop of an engine and return at once. AgentError NOT_FOUND."""
        supervisor = self._get(instance_id)
        await supervisor.stop(grace_seconds)
        return supervisor.view()

    async def forget(self, instance_id: str) -> None:
        """Remove the record and the log of an instance that has ended. AgentError NOT_FOUND, INSTANCE_EXISTS."""
        async with self._lock:
            supervisor = self._get(instance_id)
            if supervisor.record.is_live:
                raise AgentError(
                    AgentCode.INSTANCE_EXISTS, f"Instance {instance_id} is {supervisor.record.state}. Stop it first."
                )
            await supervisor.wait_final()
            await self._context.records.remove(instance_id)
            del self._supervisors[instance_id]

    def view(self, instance_id: str) -> InstanceView:
        """Return the state of an instance. AgentError NOT_FOUND."""
        return self._get(instance_id).view()

    def views(self) -> tuple[InstanceView, ...]:
        """Return the state of every instance, ended ones included."""
        return tuple(supervisor.view() for supervisor in self._supervisors.values())

    @property
    def lets_go_of_gpus(self) -> bool:
        """True while the node is drained and no engine has a GPU: then nothing of the agent should keep them open."""
        records = (supervisor.record for supervisor in self._supervisors.values())
        return self.drain.draining and not gpu_use.holds_gpus(records, self._context)

    def with_owners(self, statuses: tuple[GpuStatus, ...]) -> tuple[GpuStatus, ...]:
        """Return `statuses` with the engines on each GPU, and note the engines that use none of theirs. Blocks."""
        records = {key: supervisor.record for key, supervisor in self._supervisors.items()}
        found = usage.attribute(statuses, self.views())
        claims = gpu_use.claims(records.values(), self._context, clock.now())
        unused = usage.unused(found, claims)
        indices = {status.uuid: status.index for status in found}
        for key, supervisor in self._supervisors.items():
            is_idle = key in unused and key in records
            supervisor.without_gpus = gpu_use.not_used(records[key], claims[key], indices) if is_idle else None
        return found

    def notices(self) -> tuple[Reason, ...]:
        """Return the notices about engines that serve without the GPUs that they were given."""
        views = self.views()
        return tuple(Reason(view.notice_code, view.notice) for view in views if view.notice and view.notice_code)

    def using_folder(self, name: str) -> tuple[str, ...]:
        """Return the ids of the models whose engines use the model folder `name`."""
        return tuple(
            supervisor.record.spec.model_id
            for supervisor in self._supervisors.values()
            if supervisor.record.is_live
            and supervisor.record.spec.source
            and _top_folder(supervisor.record.spec.source.folder) == name
        )

    def target(self, instance_id: str) -> EngineTarget:
        """Return the address for requests. AgentError NOT_FOUND, or NOT_READY unless ready or unhealthy."""
        record = self._get(instance_id).record
        if record.state not in {InstanceState.READY, InstanceState.UNHEALTHY} or record.unrecorded:
            raise AgentError(
                AgentCode.NOT_READY, f"Instance {instance_id} is {record.state}, not ready.", {"state": record.state}
            )
        return EngineTarget(
            *record.address,
            record.api_key,
            record.spec.model_id,
            record.spec.generation,
            RUNTIMES[record.spec.runtime].closes_after_stream,
        )

    async def log(self, instance_id: str, tail: int, after: int | None, run: int = 0) -> LogSlice:
        """Return the last `tail` lines, or at most as many from the offset `after`. AgentError NOT_FOUND.

        `run` 1 is the run before the present one, 2 the one before that.
        """
        return await self._get(instance_id).log.read(max(0, min(tail, _MAX_TAIL)), after, run)

    async def stop_everything(self, grace_seconds: float) -> tuple[str, ...]:
        """Stop every engine of this state folder and return the ids of those that ended.

        Waits no longer than the grace and 20 s for an engine that cannot be stopped (its container engine is down).
        """
        live = [supervisor for supervisor in self._supervisors.values() if supervisor.record.is_live]
        await asyncio.gather(*(supervisor.stop(grace_seconds) for supervisor in live))
        if live:
            ends = [asyncio.create_task(supervisor.wait_final()) for supervisor in live]
            _, late = await asyncio.wait(ends, timeout=grace_seconds + _STOP_ALL_SECONDS)
            for task in late:
                task.cancel()
        return tuple(supervisor.record.instance_id for supervisor in live if not supervisor.record.is_live)

    async def close(self) -> None:
        """Stop supervising; engines keep running."""
        for task in filter(None, (self._first_reading, self._late_search)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*(supervisor.close() for supervisor in self._supervisors.values()))
        await self._context.prober.close()
        for delivery in self._context.deliveries.values():
            await delivery.close()
        self._context.records.close()
        memory.forget(self._context.config.state_dir)

    def _get(self, instance_id: str) -> EngineSupervisor:
        supervisor = self._supervisors.get(instance_id)
        if supervisor is None:
            raise AgentError(AgentCode.NOT_FOUND, f"This node has no instance {instance_id}.")
        return supervisor


def _top_folder(folder: str) -> str:
    return folder.split("/", 1)[0]


def _deliveries(config: AgentConfig, fleet: str, node: str) -> Mapping[Delivery, EngineDelivery]:
    """Return every delivery of this machine."""
    return {
        Delivery.PROCESS: ProcessDelivery(config),
        Delivery.CONTAINER: DockerDelivery(config.docker_host, fleet, node),
    }
