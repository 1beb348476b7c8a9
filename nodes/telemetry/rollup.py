"""Roll-up of samples: averages by the minute, then by the hour, and deletion past their retention."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import groupby

from django.db import transaction

from mirbad.kernel import bulk, clock
from mirbad.kernel.conf import settings
from nodes.models import TelemetryProgress, TelemetrySample
from nodes.telemetry.store import floor
from nodes.telemetry.values import average

RAW, MINUTE, HOUR = TelemetrySample.RAW, TelemetrySample.MINUTE, TelemetrySample.HOUR
LAG = timedelta(seconds=30)
"""The delay between the end of an interval and its average: its samples are written within seconds."""

_STRETCHES_AT_ONCE = 30
_ROWS_AT_ONCE = 5000
_BATCHES_AT_ONCE = 20

Row = tuple[str, int, datetime, int, object]


def roll_up_once() -> int:
    """Average complete intervals, at most half an hour of them per call; return how many were done."""
    done = 0
    for step, source in ((MINUTE, RAW), (HOUR, MINUTE)):
        for _ in range(_STRETCHES_AT_ONCE):
            if not _next(step, source):
                break
            done += 1
    return done


def done_until(step: int) -> datetime | None:
    """Return the moment up to which there are averages over `step`; None before the first."""
    return TelemetryProgress.objects.filter(pk=step).values_list("until", flat=True).first()


def _next(step: int, source: int) -> bool:
    """Average the next interval; False when none is complete."""
    length = timedelta(seconds=step)
    start = done_until(step) or _first(source, length)
    complete = floor(clock.now() - LAG, length) if source == RAW else done_until(source)
    if start is None or complete is None or start + length > complete:
        return False
    # An interval without samples has no average and no row: skip to the next with samples.
    heard = TelemetrySample.objects.filter(step=source, at__gte=start, at__lt=complete).order_by("at")
    first = heard.values_list("at", flat=True).first()
    begin = floor(complete if first is None else first, length)
    if begin + length > complete:
        _advance(step, start, begin)
        return False
    rows = list(_averages(step, source, begin, begin + length))
    with transaction.atomic():
        # Another worker may have done it meanwhile; only the worker that moves the mark writes the rows.
        if not _advance(step, start, begin + length):
            return True
        bulk.insert_new(TelemetrySample, ("node_id_text", "step", "at", "samples", "data"), rows)
    return True


def _first(source: int, length: timedelta) -> datetime | None:
    at = TelemetrySample.objects.filter(step=source).order_by("at").values_list("at", flat=True).first()
    return None if at is None else floor(at, length)


def _averages(step: int, source: int, start: datetime, end: datetime) -> Iterator[Row]:
    found = (
        TelemetrySample.objects.filter(step=source, at__gte=start, at__lt=end)
        .order_by("node_id_text", "at")
        .values_list("node_id_text", "samples", "data")
    )
    for node_id, group in groupby(found.iterator(_ROWS_AT_ONCE), key=lambda row: row[0]):
        samples, data = average((row[1], row[2]) for row in group)
        yield node_id, step, start, samples, data


def _advance(step: int, start: datetime, until: datetime) -> bool:
    if TelemetryProgress.objects.filter(pk=step, until=start).update(until=until):
        return True
    _, made = TelemetryProgress.objects.get_or_create(pk=step, defaults={"until": until})
    return made


def prune_once() -> int:
    """Delete rows past their retention, and only those that were averaged before; return how many."""
    now = clock.now()
    kept = settings()
    gone = 0
    for step, life, above in (
        (RAW, kept.telemetry_raw, MINUTE),
        (MINUTE, kept.telemetry_minutes, HOUR),
        (HOUR, kept.telemetry_hours, None),
    ):
        before = now - life
        if above is not None:
            done = done_until(above)
            if done is None:
                continue
            before = min(before, done)
        gone += _drop(step, before)
    return gone


def _drop(step: int, before: datetime) -> int:
    gone = 0
    for _ in range(_BATCHES_AT_ONCE):
        old = TelemetrySample.objects.filter(step=step, at__lt=before).order_by("at").values_list("pk", flat=True)
        ids = list(old[:_ROWS_AT_ONCE])
        if ids:
            for start in range(0, len(ids), 500):
                gone += TelemetrySample.objects.filter(pk__in=ids[start : start + 500]).delete()[0]
        if len(ids) < _ROWS_AT_ONCE:
            break
    return gone
