"""Charts drawn by the server: lines and stacked areas over even steps, with gaps where nothing is known. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from agent.common.gpu_label import gpu_label
from mirbad.web import parts
from nodes.pages.contexts.gpus import SERIES, colours
from nodes.telemetry.history import GpuHistory, History, Values

WIDTH = 720.0
HEIGHT = 120.0
_LABELS = 5

Words = Callable[[float | None], str]


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one layer of a stack. `path` is SVG; `colour` 0 is grey."""

    name: str
    colour: int
    path: str
    values: Values
    last: str


@dataclass(frozen=True, slots=True)
class Column:
    """One step: its position, and the text for a pointer over it."""

    x: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing and the table of the same values."""

    id: str
    title: str
    stacked: bool
    series: tuple[Series, ...]
    columns: tuple[Column, ...]
    ticks: tuple[str, ...]
    labels: tuple[str, ...]
    rows: tuple[tuple[datetime, tuple[str, ...]], ...]
    summary: str
    empty: bool


def charts(found: History) -> tuple[Chart, ...]:
    """Return the charts of a node: GPU utilization and power, memory by model of each GPU, and the host."""
    drawn = [_host_memory(found), _host_cpu(found)]
    if not found.gpus:
        return tuple(drawn)
    label = _labels(found.gpus)
    power = [(label[gpu.uuid], gpu.power) for gpu in found.gpus]
    heading = [
        _lines(found, "gpu-use", "GPU utilization", [(label[g.uuid], g.busy) for g in found.gpus], _percent, 100)
    ]
    colour_of = colours({model for gpu in found.gpus for model in gpu.models})
    memory = [_memory(found, gpu, label[gpu.uuid], colour_of) for gpu in found.gpus if not _shares(gpu)]
    if _known(values for _, values in power):
        heading.append(_lines(found, "gpu-power", "GPU power", power, _watts, None))
    return (*heading, *memory, *drawn)


def _shares(gpu: GpuHistory) -> bool:
    """Return whether the card has no memory of its own, so that only the memory of its models is drawn."""
    return not _known([gpu.total]) and not gpu.models


def _labels(gpus: Sequence[GpuHistory]) -> dict[str, str]:
    """Return labels by UUID: ``GPU 1``; slices share the number of their card."""
    number: dict[int | None, int] = {}
    found = {}
    for gpu in gpus:
        number[gpu.index] = number.get(gpu.index, 0) + 1
        label = gpu_label(gpu.index, gpu.uuid)
        several = sum(other.index == gpu.index for other in gpus) > 1
        found[gpu.uuid] = f"{label} · slice {number[gpu.index]}" if several and gpu.index is not None else label
    return found


def _known(columns: object) -> bool:
    return any(value is not None for values in columns for value in values)  # type: ignore[attr-defined]


def _percent(value: float | None) -> str:
    return "no data" if value is None else f"{value:.0f} %"


def _watts(value: float | None) -> str:
    return "no data" if value is None else f"{value:.0f} W"


def _bytes(value: float | None) -> str:
    return "no data" if value is None else parts.size(round(value))


def _host_memory(found: History) -> Chart:
    most = _most([found.host["total"]])
    return _lines(found, "host-memory", "Host memory in use", [("used", found.host["used"])], _bytes, most)


def _host_cpu(found: History) -> Chart:
    return _lines(found, "host-cpu", "CPU", [("all cores", found.host["cpu"])], _percent, 100)


def _most(columns: Sequence[Values]) -> float | None:
    return max((value for values in columns for value in values if value is not None), default=None)


def _memory(found: History, gpu: GpuHistory, label: str, colour_of: Mapping[str, int]) -> Chart:
    layers = [(model, colour_of[model], values) for model, values in gpu.models.items()]
    if _known([gpu.used]):
        layers.append(("other" if layers else "in use", 0, _rest(gpu)))
    most = _most([gpu.total]) or _most([gpu.used]) or 1.0
    below = [0.0] * len(found.times)
    series = []
    for name, colour, values in layers:
        upper = [base + (value or 0.0) for base, value in zip(below, values, strict=True)]
        known = [value is not None for value in values]
        path = _area(below, upper, known, most)
        series.append(Series(name, colour, path, values, _bytes(_last(values))))
        below = upper
    chart_id = f"memory-{gpu.uuid}"
    return _chart(found, chart_id, f"{label} memory by model", tuple(series), _bytes, most, stacked=True)


def _rest(gpu: GpuHistory) -> Values:
    """Return the memory in use that belongs to no model; unknown where the card reports nothing."""
    rest = []
    for number, used in enumerate(gpu.used):
        models = sum(values[number] or 0 for values in gpu.models.values())
        rest.append(None if used is None else max(0.0, used - models))
    return tuple(rest)


def _lines(
    found: History, chart_id: str, title: str, lines: Sequence[tuple[str, Values]], words: Words, most: float | None
) -> Chart:
    top = most or _rounded(_most([values for _, values in lines]))
    series = tuple(
        Series(name, number % SERIES + 1, _line(values, top), values, words(_last(values)))
        for number, (name, values) in enumerate(lines)
    )
    return _chart(found, chart_id, title, series, words, top, stacked=False)


def _rounded(most: float | None) -> float:
    """Return a round number at or above the greatest value."""
    if not most or most <= 0:
        return 1.0
    scale = 1.0
    while most / scale > 10:
        scale *= 10
    return next(step * scale for step in (1, 2, 2.5, 4, 5, 6, 8, 10) if step * scale >= most)


def _last(values: Values) -> float | None:
    return values[-1] if values else None


def _chart(
    found: History,
    chart_id: str,
    title: str,
    series: tuple[Series, ...],
    words: Words,
    top: float,
    *,
    stacked: bool,
) -> Chart:
    width = WIDTH / len(found.times)
    rows = []
    columns = []
    for number, at in enumerate(found.times):
        said = tuple(words(one.values[number]) for one in series)
        rows.append((at, said))
        told = ", ".join(f"{one.name} {value}" for one, value in zip(series, said, strict=True))
        columns.append(Column(round(number * width, 2), round(width, 2), f"{_time(at, found)}: {told}"))
    empty = not _known(one.values for one in series)
    return Chart(
        id=chart_id,
        title=title,
        stacked=stacked,
        series=series,
        columns=tuple(columns),
        ticks=(words(top), words(top / 2), words(0.0)),
        labels=_axis(found),
        rows=tuple(reversed(rows)),
        summary=f"{title}, {_time(found.times[0], found)} to {_time(found.end, found)}; all values are in the table.",
        empty=empty,
    )


def _time(at: datetime, found: History) -> str:
    if found.end - found.start <= timedelta(days=1, hours=1):
        return f"{at:%H:%M}"
    return f"{at:%b} {at.day}, {at:%H:%M}"


def _axis(found: History) -> tuple[str, ...]:
    """Return labels at even distances, the first and the last at the ends."""
    whole = found.end - found.start
    long = whole > timedelta(days=2)
    times = [found.start + whole * number / (_LABELS - 1) for number in range(_LABELS)]
    return tuple(f"{at:%b} {at.day}" if long else f"{at:%H:%M}" for at in times)


def _y(value: float, top: float) -> float:
    return round(HEIGHT - min(max(value / top, 0.0), 1.0) * (HEIGHT - 2) - 1, 2)


def _line(values: Values, top: float) -> str:
    """Return a line through the middle of each step; it breaks at a gap, and a single value is a short stroke."""
    width = WIDTH / max(1, len(values))
    path = []
    drawing = False
    for number, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        x, y = round((number + 0.5) * width, 2), _y(value, top)
        alone = not drawing and (number + 1 == len(values) or values[number + 1] is None)
        if alone:
            path.append(f"M{round(x - width * 0.3, 2)} {y}H{round(x + width * 0.3, 2)}")
        else:
            path.append(f"{'L' if drawing else 'M'}{x} {y}")
        drawing = True
    return "".join(path)


def _area(lower: Sequence[float], upper: Sequence[float], known: Sequence[bool], top: float) -> str:
    """Return the area between two heights, step by step; nothing where a value is unknown."""
    width = WIDTH / max(1, len(known))
    path = []
    number = 0
    while number < len(known):
        if not known[number]:
            number += 1
            continue
        begin = number
        while number < len(known) and known[number]:
            number += 1
        steps = range(begin, number)
        path.append(f"M{round(begin * width, 2)} {_y(lower[begin], top)}")
        path += [f"V{_y(upper[step], top)}H{round((step + 1) * width, 2)}" for step in steps]
        path += [f"V{_y(lower[step], top)}H{round(step * width, 2)}" for step in reversed(steps)]
        path.append("Z")
    return "".join(path)
