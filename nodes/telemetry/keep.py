"""Writes down what nodes measure: the first word of each in every interval, for many nodes by one statement."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from agent.wire.status import NodeStatus
from mirbad.kernel import bulk
from mirbad.kernel.conf import settings
from nodes.models import TelemetrySample
from nodes.telemetry.values import sample_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def floor(at: datetime, step: timedelta) -> datetime:
    """The beginning of the stretch that holds `at`, counted from 1970."""
    return at - (at - _EPOCH) % step


def keep(words: Mapping[str, tuple[NodeStatus, datetime]]) -> None:
    """Keep what was said and when it was heard; in the caller's transaction. One word of an interval is enough."""
    step = settings().telemetry_interval
    rows = [(pk, TelemetrySample.RAW, floor(at, step), 1, sample_of(status)) for pk, (status, at) in words.items()]
    bulk.insert_new(TelemetrySample, ("node_id_text", "step", "at", "samples", "data"), rows)
