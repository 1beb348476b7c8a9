"""Health of an engine, with or without a health endpoint."""

from agent import clock
from agent.deliveries.base import EngineDelivery, Handle
from agent.running.context import EngineContext
from agent.running.health import ProbeResult
from agent.running.record import InstanceRecord
from agent.runtimes import RUNTIMES

_MOST_TOKENS = 2**31


async def check(context: EngineContext, record: InstanceRecord) -> ProbeResult:
    """Probe a running engine.

    A shard without an endpoint counts as ready once it has lived for a moment: rank 0 reports whether it has joined.
    """
    if record.unrecorded:
        return ProbeResult.SILENT
    runtime = RUNTIMES[record.spec.runtime]
    if runtime.has_health_endpoint(record.spec):
        return await context.prober.probe(*record.address, runtime.health_path, record.api_key)
    lived = clock.monotonic() - (record.spawned_monotonic or 0.0)
    return ProbeResult.READY if lived >= context.intervals.headless_seconds else ProbeResult.SILENT


async def context_length(context: EngineContext, record: InstanceRecord) -> int | None:
    """Return the tokens that one request may have, as the ready engine reports it; None when it does not."""
    runtime = RUNTIMES[record.spec.runtime]
    if not runtime.has_health_endpoint(record.spec):
        return None
    report = await context.prober.report(*record.address, runtime.report_path, record.api_key)
    try:
        return _tokens(runtime.context_in(report))
    except (AttributeError, IndexError, KeyError, TypeError):
        return None


def _tokens(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST_TOKENS
    return int(str(value)) if is_count else None


async def is_own_engine(delivery: EngineDelivery, handle: Handle, record: InstanceRecord) -> bool:
    """Return whether this engine answered, and not another process that has taken its port."""
    if not RUNTIMES[record.spec.runtime].has_health_endpoint(record.spec):
        return True
    return await delivery.owns_port(handle, record.port) is not False
