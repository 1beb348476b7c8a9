"""The usage page: what keys asked of models, drawn by day and listed, with the same figures as CSV."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from mirbad.kernel import clock
from mirbad.kernel.roles import VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment
from models_app import usage
from models_app.models import UsageDay

PERIODS = (7, 30, 90)
HEIGHT = 160
WIDTH = 720
_ROWS_SHOWN = 200


@dataclass(slots=True)
class Total:
    """Sums over some rows."""

    requests: int = 0
    failed: int = 0
    unreported: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and answer together."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def words(self) -> dict[str, str]:
        """Each figure as a person reads it."""
        names = ("requests", "failed", "unreported", "prompt_tokens", "completion_tokens", "tokens")
        return {name: f"{getattr(self, name):,}" for name in names}

    def add(self, row: UsageDay) -> None:
        """Add one row."""
        self.requests += row.requests
        self.failed += row.failed
        self.unreported += row.unreported
        self.prompt_tokens += row.prompt_tokens
        self.completion_tokens += row.completion_tokens


@dataclass(frozen=True, slots=True)
class Bar:
    """One day of the chart, in the units of its drawing."""

    day: date
    total: Total
    x: float
    width: float
    prompt_y: float
    prompt_height: float
    completion_y: float
    completion_height: float
    labelled: bool


@dataclass(slots=True)
class Line:
    """One key and model over the period."""

    key: int
    key_name: str
    model: str
    total: Total = field(default_factory=Total)


@require_http_methods(["GET", "HEAD"])
@require_role(VIEWER)
def page(request: HttpRequest) -> HttpResponse:
    """Use over a period; ``?key=``, ``?model=`` and ``?days=`` narrow it."""
    return page_or_fragment(request, "models/usage.html", "models/_usage.html", _context(request))


def _context(request: HttpRequest) -> dict[str, Any]:
    asked = request.GET.get("days", "")
    days = int(asked) if asked in {str(period) for period in PERIODS} else PERIODS[1]
    sent = request.GET.get("key", "")
    key = int(sent) if sent.isascii() and sent.isdigit() and len(sent) < 19 else None
    model = request.GET.get("model", "")[:64]
    today = clock.now().date()
    start = today - timedelta(days=days - 1)
    names = usage.key_names()
    rows = list(usage.found(key=key, model=model, start=start, end=today))
    lines = _lines(rows, names)
    total = Total()
    for row in rows:
        total.add(row)
    narrowed = {**({"key": key} if key is not None else {}), **({"model": model} if model else {})}
    bars = bars_of(rows, start, days)
    return {
        "bars": bars,
        "top": f"{max((bar.total.tokens for bar in bars), default=0):,}",
        "lines": lines[:_ROWS_SHOWN],
        "left_out": max(0, len(lines) - _ROWS_SHOWN),
        "total": total,
        "width": WIDTH,
        "height": HEIGHT,
        "days": days,
        "periods": [(period, urlencode({**narrowed, "days": period})) for period in PERIODS],
        "key_name": names.get(key, f"key {key}") if key is not None else "",
        "model": model,
        "csv_url": f"{reverse('api-usage')}?{urlencode({**narrowed, 'from': start, 'to': today, 'format': 'csv'})}",
    }


def bars_of(rows: Iterable[UsageDay], start: date, days: int) -> Sequence[Bar]:
    """The chart: one bar a day, prompt tokens below those of answers."""
    totals = {start + timedelta(days=number): Total() for number in range(days)}
    for row in rows:
        if row.day in totals:
            totals[row.day].add(row)
    top = max((total.tokens for total in totals.values()), default=0) or 1
    step = WIDTH / days
    found = []
    for number, (day, total) in enumerate(totals.items()):
        prompt = total.prompt_tokens / top * HEIGHT
        completion = total.completion_tokens / top * HEIGHT
        found.append(
            Bar(
                day=day,
                total=total,
                x=round(number * step + step * 0.1, 2),
                width=round(step * 0.8, 2),
                prompt_y=round(HEIGHT - prompt, 2),
                prompt_height=round(prompt, 2),
                completion_y=round(HEIGHT - prompt - completion, 2),
                completion_height=round(completion, 2),
                labelled=(days - 1 - number) % max(1, days // 6) == 0,
            )
        )
    return found


def _lines(rows: Iterable[UsageDay], names: dict[int, str]) -> list[Line]:
    found: dict[tuple[int, str], Line] = {}
    for row in rows:
        place = (row.key_number, row.model_id_text)
        if place not in found:
            found[place] = Line(row.key_number, names.get(row.key_number, f"key {row.key_number}"), row.model_id_text)
        found[place].total.add(row)
    return sorted(found.values(), key=lambda line: (-line.total.tokens, -line.total.requests, line.key, line.model))
