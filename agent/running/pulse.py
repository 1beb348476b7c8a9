"""How an engine is, whoever it answers to: most are asked, a shard that only works for another is seen to live."""

from agent import clock
from agent.deliveries.base import EngineDelivery, Handle
from agent.running.health import Beat
from agent.running.record import Record
from agent.running.yard import Yard
from agent.runtimes import RUNTIMES


async def take(yard: Yard, record: Record) -> Beat:
    """One look at an engine that runs.

    A shard that does not answer counts as ready once it has lived for a moment: whether it has joined is what rank 0
    says of itself.
    """
    runtime = RUNTIMES[record.spec.runtime]
    if runtime.answers(record.spec):
        return await yard.prober.ask(record.host, record.port, runtime.health_path, record.api_key)
    lived = clock.monotonic() - (record.spawned_monotonic or 0.0)
    return Beat.READY if lived >= yard.pace.silent else Beat.SILENT


async def is_its_own(delivery: EngineDelivery, handle: Handle, record: Record) -> bool:
    """Whether what answered was this engine, and not another that has taken its port."""
    if not RUNTIMES[record.spec.runtime].answers(record.spec):
        return True
    return await delivery.owns_port(handle, record.port) is not False
