"""Recovery after a start of the agent: from a record on disk to the engine that really runs."""

import json
import logging
import re

from pydantic import ValidationError

from agent import clock
from agent.deliveries.base import INSTANCE_VARIABLE, DeliveryFailed, FoundEngine
from agent.running.endings import EngineEnded
from agent.running.record import InstanceRecord
from agent.running.supervisor import EngineSupervisor
from agent.runtimes import RUNTIMES
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import InstanceState, LaunchSpec

_log = logging.getLogger("mirbad.agent.instances")

INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_ATTEMPTS = 3
_RESTARTED = "The machine restarted while the engine was running."


async def resume(supervisor: EngineSupervisor) -> None:
    """Continue the work on one instance.

    A running engine is adopted. A start that did not begin, or left no trace, is repeated: no engine of it runs, so
    nothing runs twice. An engine that ran and is gone has ended, or was lost when the machine went down.
    """
    record = supervisor.record
    if not record.is_live:
        return
    supervisor.context.ports |= {port for port in (record.port, record.rendezvous_port) if port}
    delivery = supervisor.context.deliveries.get(record.spec.delivery)
    if delivery is None:
        await supervisor.finish(
            EngineEnded("lost", f"This node no longer runs engines with the delivery '{record.spec.delivery}'.")
        )
        return
    try:
        handle = await delivery.recover(record.launch_id, record.handle) if record.launch_id else None
    except DeliveryFailed as error:
        _log.warning("instance %s: cannot be found yet: %s", record.instance_id, error)
        supervisor.retry_recovery(resume)
        return
    restarted = _restarted(record)
    if handle is not None:
        record.handle = handle
        observed = await delivery.observe(handle)
        if not observed.running and restarted and not record.stop_requested:
            await supervisor.finish(EngineEnded("lost", _RESTARTED, observed))
            return
        _log.info("instance %s: adopted (%s)", record.instance_id, handle.container_id or handle.pid)
        supervisor.adopt()
    elif record.stop_requested:
        await supervisor.finish(EngineEnded("stopped", "Stopped on request."))
    elif record.handle is None and record.attempts < _MAX_ATTEMPTS and not _has_written(supervisor):
        _log.info("instance %s: its start is repeated", record.instance_id)
        record.spawning, record.launch_id = False, ""
        record.state = InstanceState.PREPARING
        supervisor.begin()
    elif restarted:
        await supervisor.finish(EngineEnded("lost", _RESTARTED))
    else:
        await supervisor.finish(EngineEnded("engine_exited", "The engine exited while the agent was not running."))


def _restarted(record: InstanceRecord) -> bool:
    """Return whether the machine (for a process: or the agent's container) was restarted since the engine started."""
    if record.boot_id and record.boot_id != clock.boot_id():
        return True
    known = None not in (record.init_ticks, clock.init_ticks())
    return record.spec.delivery == Delivery.PROCESS and known and record.init_ticks != clock.init_ticks()


def _has_written(supervisor: EngineSupervisor) -> bool:
    """Return whether an engine of this launch wrote to its log: then it ran, and ended by itself."""
    return supervisor.record.spawning and supervisor.log.file.end() > 0


async def is_running(supervisor: EngineSupervisor) -> bool:
    """Return whether the engine of this record runs; also while that is unknown."""
    record = supervisor.record
    delivery = supervisor.context.deliveries.get(record.spec.delivery)
    if not record.is_live or not record.launch_id or delivery is None:
        return False
    try:
        handle = await delivery.recover(record.launch_id, record.handle)
    except DeliveryFailed:
        return True
    return handle is not None and (await delivery.observe(handle)).running


def record_from(found: FoundEngine) -> InstanceRecord:
    """Return a record for an engine without one: from what was kept beside it, else one that can only be stopped."""
    try:
        record = InstanceRecord.model_validate({**json.loads(found.record), "api_key": ""})
        record.state = InstanceState.LOADING
    except (ValueError, TypeError, ValidationError):
        where = found.handle.container_id or f"process {found.handle.pid}"
        _log.warning("nothing that can be read is kept of the record of an engine (%s); it gets no requests", where)
        record = _unknown(found)
    record.api_key = found.env.get(RUNTIMES[record.spec.runtime].key_variable, "")
    record.launch_id, record.handle, record.boot_id = found.handle.launch_id, found.handle, found.handle.boot_id
    record.spawning = True
    return record


def _unknown(found: FoundEngine) -> InstanceRecord:
    launch_id = found.handle.launch_id
    named = found.env.get(INSTANCE_VARIABLE, "")
    runtime = next((name for name, one in RUNTIMES.items() if one.key_variable in found.env), Runtime.LLAMA_CPP)
    spec = LaunchSpec(
        model_id=found.model_id,
        generation=0,
        config_hash="",
        runtime=runtime,
        delivery=Delivery.CONTAINER if found.handle.container_id else Delivery.PROCESS,
        served_names=(found.model_id,),
    )
    return InstanceRecord(
        instance_id=named if INSTANCE_ID.fullmatch(named) else f"launch-{launch_id[:40]}",
        operation_id="",
        spec=spec,
        api_key="",
        state=InstanceState.UNHEALTHY,
        reason="The agent lost the record of this engine, so it gets no requests. Stop it, and start its model again.",
        reason_code="record_lost",
        unrecorded=True,
    )
