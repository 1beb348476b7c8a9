"""Engines that were given a GPU and do not use it: a notice beside the state, since they serve all the same."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from agent.common.gpu_label import gpu_label
from agent.common.reason import Reason
from agent.running.context import EngineContext
from agent.running.record import InstanceRecord
from agent.running.run_spec import gpus_of
from agent.runtimes import RUNTIMES
from agent.wire.instances import InstanceState

REQUEST_DROPPED, NOT_USED = "gpu_request_dropped", "gpu_not_used"

_SETTLED = timedelta(seconds=60)
_HEADLESS_SETTLED = timedelta(minutes=10)
"""A shard without an endpoint counts as ready long before it has loaded."""


def claims(records: Iterable[InstanceRecord], context: EngineContext, now: datetime) -> dict[str, tuple[str, ...]]:
    """Return the GPUs of each engine that has been ready for long enough to use them, by instance id."""
    found = {}
    for record in records:
        gpus = gpus_of(record.spec, context)
        if gpus is None or record.state not in {InstanceState.READY, InstanceState.UNHEALTHY}:
            continue
        runtime = RUNTIMES[record.spec.runtime]
        if not gpus and not runtime.uses_gpus(record.spec, context.config):
            continue  # without GPU code it uses none of the machine's, by choice
        settled = _SETTLED if runtime.has_health_endpoint(record.spec) else _HEADLESS_SETTLED
        if record.ready_at is not None and now - datetime.fromisoformat(record.ready_at) >= settled:
            everything = tuple(card.uuid for card in context.cards.cards) if context.cards is not None else ()
            found[record.instance_id] = gpus or everything
    return found


def holds_gpus(records: Iterable[InstanceRecord], context: EngineContext) -> bool:
    """Return whether an engine that may exist was given a GPU."""
    return any(record.is_live and gpus_of(record.spec, context) is not None for record in records)


def dropped(record: InstanceRecord) -> Reason | None:
    """Return the notice about an engine whose container was made without its GPUs."""
    if record.handle is None or not record.handle.without_gpus or not record.is_live:
        return None
    text = (
        f"Model {record.spec.model_id} runs without its GPUs: the Docker socket of this node dropped the request for "
        "them, as Podman's does. Use Docker Engine with the NVIDIA Container Toolkit."
    )
    return Reason(REQUEST_DROPPED, text)


def not_used(record: InstanceRecord, uuids: Iterable[str], indices: Mapping[str, int | None]) -> Reason:
    """Return the notice about an engine of which no process is on its GPUs."""
    labels = ", ".join(gpu_label(indices.get(uuid), uuid) for uuid in uuids)
    text = (
        f"Model {record.spec.model_id} does not use {labels}: none of its processes is there, so it computes on the "
        "CPU. Its log says why. The image or program must have GPU code for the driver of this node."
    )
    return Reason(NOT_USED, text)
