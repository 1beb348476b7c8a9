"""Measurements of a node over a period, in even steps. A step without a status is None: a gap, never 0."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import InvalidRequest
from nodes.models import Gpu, TelemetrySample
from nodes.telemetry.rollup import done_until
from nodes.telemetry.store import floor
from nodes.telemetry.values import average

RAW, MINUTE, HOUR = TelemetrySample.RAW, TelemetrySample.MINUTE, TelemetrySample.HOUR
MOST_POINTS = 2000
USUAL_POINTS = 240
LONGEST_STEP = 86400
_STEPS = (15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, LONGEST_STEP)

Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """One card, or a slice. `models` is memory by model id; each tuple has one value per step."""

    uuid: str
    index: int | None
    name: str
    present: bool
    total: Values
    used: Values
    peak: Values
    busy: Values
    power: Values
    heat: Values
    models: Mapping[str, Values]


@dataclass(frozen=True, slots=True)
class History:
    """A node from `start` to `end`; `times` are the starts of the steps."""

    node_id: str
    start: datetime
    end: datetime
    step: int
    times: tuple[datetime, ...]
    samples: tuple[int, ...]
    host: Mapping[str, Values]
    gpus: tuple[GpuHistory, ...]

    @property
    def empty(self) -> bool:
        """True when no status arrived in the period."""
        return not any(self.samples)


@dataclass(frozen=True, slots=True)
class Span:
    """A valid period, and its step in seconds."""

    start: datetime
    end: datetime
    step: int


def span(start: datetime | None, end: datetime | None, step: int | None) -> Span:
    """Return the requested period, by default the last hour. InvalidRequest names each bound that is broken."""
    now = clock.now()
    end = now if end is None else min(end, now)
    start = end - timedelta(hours=1) if start is None else start
    if start >= end:
        raise _refused("from", "from must be before to, and not in the future.")
    seconds = (end - start).total_seconds()
    finest = finest_step(start, now)
    if step is None:
        wanted = max(float(finest), seconds / USUAL_POINTS)
        step = next((one for one in _STEPS if one >= wanted), LONGEST_STEP)
    elif not finest <= step <= LONGEST_STEP:
        raise _refused(
            "step", f"step must be a whole number of seconds from {finest} to {LONGEST_STEP} for values of that age."
        )
    if seconds / step > MOST_POINTS:
        raise _refused("step", f"That is more than {MOST_POINTS} values; use a longer step or a shorter period.")
    return Span(start, end, step)


def _refused(name: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, problems=[{"code": "out_of_range", "message": message, "field": name}])


def finest_step(start: datetime, now: datetime) -> int:
    """Return the shortest step in seconds for which values from `start` on are still kept."""
    kept = settings()
    age = now - start
    if age <= kept.telemetry_raw:
        return max(1, round(kept.telemetry_interval.total_seconds()))
    return MINUTE if age <= kept.telemetry_minutes else HOUR


def read(node_id: str, asked: Span) -> History:
    """Return the node's measurements, in six statements at most."""
    length = timedelta(seconds=asked.step)
    begin = floor(asked.start, length)
    count = max(1, -(-int((asked.end - begin).total_seconds()) // asked.step))
    buckets: list[list[tuple[int, Any]]] = [[] for _ in range(count)]
    for at, samples, data in _rows(node_id, begin, asked):
        place = int((at - begin) / length)
        if 0 <= place < count:
            buckets[place].append((samples, data))
    averaged = [average(bucket) for bucket in buckets]
    host = _columns(data["host"] for _, data in averaged)
    return History(
        node_id=node_id,
        start=begin,
        end=asked.end,
        step=asked.step,
        times=tuple(begin + number * length for number in range(count)),
        samples=tuple(samples for samples, _ in averaged),
        host={name: host(name) for name in ("used", "total", "cpu", "peak")},
        gpus=_gpus(node_id, [data["gpus"] for _, data in averaged]),
    )


def _rows(node_id: str, begin: datetime, asked: Span) -> Iterable[tuple[datetime, int, Any]]:
    """Yield the stored rows of a step: averages as far as they are done, then the rows that they will be made from."""
    steps = [one for one in (HOUR, MINUTE) if one <= asked.step]
    start = begin
    for step in steps:
        until = done_until(step)
        if until is None or until <= start:
            continue
        yield from _of(node_id, step, start, min(until, asked.end))
        start = until
    if start < asked.end:
        yield from _of(node_id, RAW, start, asked.end)


def _of(node_id: str, step: int, start: datetime, end: datetime) -> Iterable[tuple[datetime, int, Any]]:
    rows = TelemetrySample.objects.filter(node_id_text=node_id, step=step, at__gte=start, at__lt=end)
    return rows.order_by("at").values_list("at", "samples", "data").iterator()


def _columns(rows: Iterable[Mapping[str, Any]]) -> Callable[[str], Values]:
    """Return a function that gives the values of one name, one per row."""
    kept = tuple(rows)
    return lambda name: tuple(row.get(name) for row in kept)


def _gpus(node_id: str, rows: Sequence[Mapping[str, Any]]) -> tuple[GpuHistory, ...]:
    known = {gpu.uuid: gpu for gpu in Gpu.objects.filter(node_id=node_id)}
    uuids = {uuid for row in rows for uuid in row} | {uuid for uuid, gpu in known.items() if gpu.present}
    found = []
    for uuid in uuids:
        gpu = known.get(uuid)
        of = _columns(row.get(uuid, {}) for row in rows)
        models = sorted({model for row in rows for model in row.get(uuid, {}).get("models", {})})
        by_model = _columns(row.get(uuid, {}).get("models", {}) for row in rows)
        found.append(
            GpuHistory(
                uuid=uuid,
                index=gpu.index if gpu else None,
                name=gpu.name if gpu else "",
                present=bool(gpu and gpu.present),
                total=of("total"),
                used=of("used"),
                peak=of("peak"),
                busy=of("busy"),
                power=of("power"),
                heat=of("heat"),
                models={model: by_model(model) for model in models},
            )
        )
    return tuple(sorted(found, key=lambda one: (one.index is None, one.index or 0, one.uuid)))


def moment(text: str, name: str) -> datetime:
    """Parse an RFC 3339 time with its offset. Raises InvalidRequest."""
    try:
        # An unescaped plus in a query is read as a space.
        value = datetime.fromisoformat(text.strip().replace(" ", "+"))
        if value.tzinfo is None:
            raise ValueError(text)
        return value.astimezone(UTC)
    except (ValueError, OverflowError):
        message = f"{name} must be a time with its offset, such as 2026-01-31T12:00:00Z."
        raise InvalidRequest(message, problems=[{"code": "invalid", "message": message, "field": name}]) from None
