"""View-models of the API keys of ``/v1``."""

from dataclasses import dataclass
from datetime import datetime

from mirbad.kernel import clock
from mirbad.web.parts import Badge
from models_app import keys
from models_app.models import ApiKey


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key of ``/v1`` in a list."""

    id: int
    name: str
    prefix: str
    models: tuple[str, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    limits: tuple[str, ...]
    previous_until: datetime | None
    badge: Badge
    live: bool


def rows(*, include_revoked: bool = False) -> tuple[KeyRow, ...]:
    """Return the keys, newest first. One query."""
    now = clock.now()
    return tuple(_key(key, now) for key in keys.listed(include_revoked=include_revoked))


def _key(key: ApiKey, now: datetime) -> KeyRow:
    if key.revoked_at is not None:
        badge = Badge("Revoked", "idle", "ban")
    elif key.expires_at is not None and key.expires_at <= now:
        badge = Badge("Expired", "idle", "clock")
    else:
        badge = Badge("Active", "ok", "circle-check")
    return KeyRow(
        id=key.pk,
        name=key.name,
        prefix=key.prefix,
        models=tuple(key.allowed_models),
        created_at=key.created_at,
        created_by=key.created_by,
        expires_at=key.expires_at,
        last_used_at=key.last_used_at,
        limits=_limits(key),
        previous_until=key.previous_until if key.previous_until is not None and key.previous_until > now else None,
        badge=badge,
        live=badge.tone == "ok",
    )


def _limits(key: ApiKey) -> tuple[str, ...]:
    words = (
        (key.requests_per_minute, "requests/min"),
        (key.tokens_per_minute, "tokens/min"),
        (key.max_parallel, "concurrent"),
    )
    return tuple(f"{value} {unit}" for value, unit in words if value is not None)
