"""Usage by key, model and day: written in bulk by the gateway, read by pages and ``/api/usage``."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from django.db import connection, transaction
from django.db.models import QuerySet

from mirbad.kernel import clock
from models_app.models import ApiKey, UsageDay

PAGES_KEY = 0
"""The number of Mirbad's own pages, which use no key."""

Place = tuple[int, str, date]
"""Key number, model id, UTC day."""


@dataclass(slots=True)
class Sums:
    """The sums of one place; `UsageDay` documents each."""

    requests: int = 0
    failed: int = 0
    unreported: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


_ADDED = ("requests", "failed", "unreported", "prompt_tokens", "completion_tokens")


def add(sums: Mapping[Place, Sums]) -> None:
    """Add to the rows in one transaction, safe with other processes that add to the same rows."""
    if not sums:
        return
    table = connection.ops.quote_name(UsageDay._meta.db_table)  # noqa: SLF001  Django documents it
    named = ", ".join(("key_number", "model_id_text", "day", *_ADDED))
    summed = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in _ADDED)
    statement = (
        f"INSERT INTO {table} ({named}) VALUES ({', '.join(['%s'] * (3 + len(_ADDED)))}) "  # noqa: S608  names of ours
        f"ON CONFLICT (key_number, model_id_text, day) DO UPDATE SET {summed}"
    )
    rows = [
        (*place, *(getattr(found, name) for name in _ADDED))
        for place, found in sorted(sums.items())  # one order in all processes, so that no two wait for each other
    ]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany(statement, rows)


def used(key_ids: set[int]) -> None:
    """Record that keys were used just now."""
    ApiKey.objects.filter(id__in=key_ids).update(last_used_at=clock.now())


def found(
    *, key: int | None = None, model: str = "", start: date | None = None, end: date | None = None
) -> QuerySet[UsageDay]:
    """Return the rows of the days from `start` to `end`, both included, the latest day first."""
    rows = UsageDay.objects.all()
    if key is not None:
        rows = rows.filter(key_number=key)
    if model:
        rows = rows.filter(model_id_text=model)
    if start is not None:
        rows = rows.filter(day__gte=start)
    if end is not None:
        rows = rows.filter(day__lte=end)
    return rows


def key_names() -> dict[int, str]:
    """Return the name of each key number, revoked ones too; one query."""
    return {PAGES_KEY: "Playground", **dict(ApiKey.objects.values_list("id", "name"))}
