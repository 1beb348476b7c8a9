"""The view-model of the list of admin tokens."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from mirbad.accounts.models import AdminToken
from mirbad.kernel import clock
from mirbad.web.parts import Badge

_IN_USE = Badge("In use", "ok", "circle-check")
_REVOKED = Badge("Revoked", "idle", "ban")
_ENDED = Badge("Ended", "idle", "clock")
_OWNER_GONE = Badge("Refused", "warn", "triangle-alert", "The owner's account is inactive")


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One token without its secret."""

    id: int
    name: str
    prefix: str
    role: str
    owner: str
    badge: Badge
    live: bool
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None


def rows(tokens: Iterable[AdminToken]) -> list[TokenRow]:
    """Return `tokens` as rows; their owners are prefetched, no query."""
    now = clock.now()
    return [
        TokenRow(
            id=token.pk,
            name=token.name,
            prefix=token.prefix,
            role=token.role,
            owner=token.owner.get_username() if token.owner else "",
            badge=_badge(token, now),
            live=token.revoked_at is None,
            created_at=token.created_at,
            last_used_at=token.last_used_at,
            expires_at=token.expires_at,
        )
        for token in tokens
    ]


def _badge(token: AdminToken, now: datetime) -> Badge:
    if token.revoked_at is not None:
        return _REVOKED
    if token.expires_at is not None and token.expires_at <= now:
        return _ENDED
    if token.owner is not None and not token.owner.is_active:
        return _OWNER_GONE
    return _IN_USE
