"""Admin tokens: ``mbt_`` and 43 base64url characters, of which the master keeps only the SHA-256."""

import hashlib
import secrets
from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q

from audit.log import record
from mirbad.accounts.models import AdminToken
from mirbad.accounts.roles import ROLES
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound

PREFIX = "mbt_"
USE_NOTED_EVERY = timedelta(minutes=1)
_SHOWN = 12


def create(
    name: str, role: str, *, actor: Actor, owner: User | None = None, expires_at: datetime | None = None
) -> tuple[AdminToken, str]:
    """Create a token; return it with its secret, which is shown once. Raises InvalidRequest."""
    name = name.strip()
    if not name or len(name) > 100:
        raise InvalidRequest("A token needs a name of 1 to 100 characters.")
    if role not in ROLES:
        raise InvalidRequest(f"The role must be one of {', '.join(ROLES)}.")
    if expires_at is not None and expires_at <= clock.now():
        raise InvalidRequest("The expiry is in the past.")
    secret = PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        token = AdminToken.objects.create(
            name=name, prefix=secret[:_SHOWN], digest=_digest(secret), role=role, owner=owner, expires_at=expires_at
        )
        record("admin-token", actor, target=f"{token.pk} {name}", detail=f"created with the role {role}")
    return token, secret


def revoke(token_id: int, actor: Actor) -> None:
    """Revoke a token at once. Raises NotFound, or Conflict when it is already revoked."""
    with transaction.atomic():
        token = AdminToken.objects.filter(pk=token_id).first()
        if token is None:
            raise NotFound("Admin token not found.")
        if not AdminToken.objects.filter(pk=token_id, revoked_at__isnull=True).update(revoked_at=clock.now()):
            raise Conflict("This admin token is already revoked.")
        record("admin-token", actor, target=f"{token.pk} {token.name}", detail="revoked")


def find(secret: str) -> AdminToken | None:
    """Return the valid token of `secret`, or None. Records its use, at most once a minute."""
    if not secret.startswith(PREFIX):
        return None
    now = clock.now()
    token = (
        AdminToken.objects.select_related("owner")
        .filter(Q(expires_at__isnull=True) | Q(expires_at__gt=now), digest=_digest(secret), revoked_at__isnull=True)
        .first()
    )
    if token is None or (token.owner is not None and not token.owner.is_active):
        return None
    stale = now - USE_NOTED_EVERY
    if token.last_used_at is None or token.last_used_at < stale:
        AdminToken.objects.filter(Q(last_used_at__isnull=True) | Q(last_used_at__lt=stale), pk=token.pk).update(
            last_used_at=now
        )
    return token


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
