"""After a start of the agent: from a record on disk to what really runs."""

import json
import logging

from pydantic import ValidationError

from agent import clock
from agent.deliveries.base import DeliveryFailed, Found
from agent.running.endings import Ended
from agent.running.keeper import Keeper
from agent.running.record import Record
from agent.runtimes import RUNTIMES
from agent.wire.capability import Delivery
from agent.wire.instances import InstanceState

_log = logging.getLogger("mirbad.agent.instances")

_MAX_ATTEMPTS = 3
_RESTARTED = "The machine was restarted while the engine ran."


async def take_up(keeper: Keeper) -> None:
    """Go on with one instance.

    What runs is adopted. What was not begun, or was begun without a trace, is begun again: its engine does not run,
    so nothing runs twice. What ran and is gone has ended, or was lost when the machine went down.
    """
    record = keeper.record
    if not record.is_live:
        return
    keeper.yard.ports |= {port for port in (record.port, record.rendezvous_port) if port}
    delivery = keeper.yard.deliveries.get(record.spec.delivery)
    if delivery is None:
        await keeper.finish(Ended("lost", f"This node no longer runs engines as a {record.spec.delivery}."))
        return
    try:
        handle = await delivery.recover(record.launch_id, record.handle) if record.launch_id else None
    except DeliveryFailed as error:
        _log.warning("instance %s: not found yet: %s", record.instance_id, error)
        keeper.later(take_up)
        return
    restarted = _restarted(record)
    if handle is not None:
        record.handle = handle
        seen = await delivery.seen(handle)
        if not seen.running and restarted and not record.stop_requested:
            await keeper.finish(Ended("lost", _RESTARTED, seen))
            return
        _log.info("instance %s: adopted (%s)", record.instance_id, handle.container_id or handle.pid)
        keeper.adopt()
    elif record.stop_requested:
        await keeper.finish(Ended("stopped", "Stopped on request."))
    elif record.handle is None and record.attempts < _MAX_ATTEMPTS and not _has_written(keeper):
        _log.info("instance %s: its start goes on", record.instance_id)
        record.spawning, record.launch_id = False, ""
        record.state = InstanceState.PREPARING
        keeper.begin()
    elif restarted:
        await keeper.finish(Ended("lost", _RESTARTED))
    else:
        await keeper.finish(Ended("engine_exited", "The engine ended while the agent was not running."))


def _restarted(record: Record) -> bool:
    """Whether the machine went down since the start, or, for a process, the container in which everything here runs."""
    if record.boot_id and record.boot_id != clock.boot_id():
        return True
    known = None not in (record.init_ticks, clock.init_ticks())
    return record.spec.delivery == Delivery.PROCESS and known and record.init_ticks != clock.init_ticks()


def _has_written(keeper: Keeper) -> bool:
    """Whether an engine of this launch came so far as to write a line: then it ran, and ended by itself."""
    return keeper.record.spawning and keeper.log.size() > 0


def record_of(found: Found) -> Record | None:
    """A record for an engine whose own was lost, from what its container carries; None when that cannot be read."""
    try:
        record = Record.model_validate({**json.loads(found.record), "api_key": ""})
    except (ValueError, TypeError, ValidationError):
        _log.exception("a container of this node carries no readable record: %s", found.handle.container_id)
        return None
    record.api_key = found.env.get(RUNTIMES[record.spec.runtime].key_variable, "")
    record.launch_id, record.handle, record.boot_id = found.handle.launch_id, found.handle, found.handle.boot_id
    record.state, record.spawning = InstanceState.LOADING, True
    return record
