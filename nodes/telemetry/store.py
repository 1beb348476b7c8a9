"""Storage of measurements: the first status of each node in every interval, many nodes in one statement."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from agent.wire.status import NodeStatus
from mirbad.kernel import bulk
from mirbad.kernel.conf import settings
from nodes.models import TelemetrySample
from nodes.telemetry.values import sample_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def floor(at: datetime, step: timedelta) -> datetime:
    """Return the start of the interval that contains `at`, counted from 1970."""
    return at - (at - _EPOCH) % step


def store(words: Mapping[str, tuple[NodeStatus, datetime]]) -> None:
    """Store statuses with their times of arrival, in the caller's transaction. The first one of an interval is kept."""
    step = settings().telemetry_interval
    rows = [(pk, TelemetrySample.RAW, floor(at, step), 1, sample_of(status)) for pk, (status, at) in words.items()]
    bulk.insert_new(TelemetrySample, ("node_id_text", "step", "at", "samples", "data"), rows)
