"""View-models of the usage page: usage by key and model, as a chart by day and as a list."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse

from mirbad.kernel import clock
from models_app import usage
from models_app.models import UsageDay

PERIODS = (7, 30, 90)
HEIGHT = 160
WIDTH = 720
_ROWS_SHOWN = 200


@dataclass(slots=True)
class UsageTotal:
    """Sums over several rows."""

    requests: int = 0
    failed: int = 0
    unreported: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Return the tokens of prompts and completions."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def words(self) -> dict[str, str]:
        """Return each number as a person reads it."""
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
class UsageBar:
    """One day of the chart, in its drawing units."""

    day: date
    total: UsageTotal
    x: float
    width: float
    prompt_y: float
    prompt_height: float
    completion_y: float
    completion_height: float
    labelled: bool


@dataclass(slots=True)
class UsageLine:
    """One key and model over the period."""

    key: int
    key_name: str
    model: str
    total: UsageTotal = field(default_factory=UsageTotal)


def of_request(request: HttpRequest) -> dict[str, Any]:
    """Return the template's context for the period, key and model of the query string."""
    sent_days = request.GET.get("days", "")
    days = int(sent_days) if sent_days in {str(period) for period in PERIODS} else PERIODS[1]
    sent = request.GET.get("key", "")
    key = int(sent) if sent.isascii() and sent.isdigit() and len(sent) < 19 else None
    model = request.GET.get("model", "")[:64]
    today = clock.now().date()
    start = today - timedelta(days=days - 1)
    names = usage.key_names()
    rows = list(usage.found(key=key, model=model, start=start, end=today))
    lines = _lines(rows, names)
    total = UsageTotal()
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


def bars_of(rows: Iterable[UsageDay], start: date, days: int) -> Sequence[UsageBar]:
    """Return the chart: one bar for each day, prompt tokens below completion tokens."""
    totals = {start + timedelta(days=number): UsageTotal() for number in range(days)}
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
            UsageBar(
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


def _lines(rows: Iterable[UsageDay], names: dict[int, str]) -> list[UsageLine]:
    found: dict[tuple[int, str], UsageLine] = {}
    for row in rows:
        place = (row.key_number, row.model_id_text)
        if place not in found:
            found[place] = UsageLine(
                row.key_number, names.get(row.key_number, f"key {row.key_number}"), row.model_id_text
            )
        found[place].total.add(row)
    return sorted(found.values(), key=lambda line: (-line.total.tokens, -line.total.requests, line.key, line.model))
