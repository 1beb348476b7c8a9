"""Keys of `/v1`: create, change, rotate, revoke. A secret is shown once; only its SHA-256 is stored."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from audit import log as audit_log
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound
from mirbad.live import invalidations
from models_app import routing
from models_app.models import ApiKey, ModelDefinition

PREFIX = "ssk_"
NAME_LENGTH = 100
LIMIT_HIGHEST = 1_000_000_000
GRACE_LONGEST = timedelta(days=7)
_SHOWN_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one key in each process that serves `/v1`. None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_parallel: int | None = None


LIMIT_NAMES = tuple(field.name for field in fields(Limits))
_CHANGEABLE = frozenset({"name", "allowed_models", "expires_at", *LIMIT_NAMES})


def digest(secret: str) -> str:
    """Return the stored digest of a key: SHA-256, lower hex. A 256-bit random secret needs no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def create(
    name: str,
    *,
    actor: Actor,
    allowed_models: Sequence[str] = (),
    expires_at: datetime | None = None,
    limits: Limits = Limits(),
) -> tuple[ApiKey, str]:
    """Create a key; return it with its secret, which is never shown again. No `allowed_models` means all models.

    Raises InvalidRequest when the name is empty or too long, a model is unknown, the expiry is past or naive, or a
    limit is not a whole number from 1.
    """
    values = _checked(
        {
            "name": name,
            "allowed_models": allowed_models,
            "expires_at": expires_at,
            **{limit: getattr(limits, limit) for limit in LIMIT_NAMES},
        }
    )
    secret = _new_secret()
    with transaction.atomic():
        key = ApiKey.objects.create(
            prefix=secret[:_SHOWN_LENGTH], digest=digest(secret), created_by=actor.name, **values
        )
        _written(key, actor, "created")
    return key, secret


def update(key_id: int, actor: Actor, **changes: Any) -> ApiKey:
    """Change a key's name, allowed models, expiry (None: never) or limits (None: none); the secret stays.

    Every gateway process applies it within two seconds. Raises InvalidRequest, NotFound, and Conflict for a revoked
    key.
    """
    unknown = set(changes) - _CHANGEABLE
    if unknown:
        raise TypeError(f"a key has no changeable {', '.join(sorted(unknown))}")
    values = _checked(changes)
    with transaction.atomic():
        key = _live(key_id)
        if not values:
            return key
        ApiKey.objects.filter(id=key_id, revoked_at=None).update(**values)
        key.refresh_from_db()
        _written(key, actor, "changed " + ", ".join(sorted(values)))
    return key


def rotate(key_id: int, actor: Actor, *, grace: timedelta = timedelta(0)) -> tuple[ApiKey, str]:
    """Give a key a new secret; the old one stays valid for `grace`, so that clients can be changed meanwhile.

    Raises InvalidRequest for a grace outside 0 to GRACE_LONGEST, NotFound, and Conflict for a revoked key.
    """
    if not timedelta(0) <= grace <= GRACE_LONGEST:
        text = f"The old secret may stay valid for 0 to {int(GRACE_LONGEST.total_seconds())} seconds."
        raise InvalidRequest(text, problems=[{"code": "grace_invalid", "field": "graceSeconds", "message": text}])
    secret = _new_secret()
    with transaction.atomic():
        key = _live(key_id)
        now = clock.now()
        key.previous_digest = key.digest if grace else ""
        key.previous_until = now + grace if grace else None
        key.digest, key.prefix, key.rotated_at = digest(secret), secret[:_SHOWN_LENGTH], now
        key.save(update_fields=["digest", "prefix", "rotated_at", "previous_digest", "previous_until"])
        _written(key, actor, "rotated")
    return key, secret


def revoke(key_id: int, actor: Actor) -> ApiKey:
    """Revoke a key for good; every gateway process refuses it within two seconds. A second time changes nothing.

    Raises NotFound.
    """
    with transaction.atomic():
        ended = ApiKey.objects.filter(id=key_id, revoked_at=None).update(revoked_at=clock.now())
        key = ApiKey.objects.filter(id=key_id).first()
        if key is None:
            raise NotFound("No API key has that id.")
        if ended:
            _written(key, actor, "revoked")
    return key


def get(key_id: int) -> ApiKey:
    """Return one key. Raises NotFound."""
    key = ApiKey.objects.filter(id=key_id).first()
    if key is None:
        raise NotFound("No API key has that id.")
    return key


def listed(*, include_revoked: bool = False) -> QuerySet[ApiKey]:
    """Return the keys, newest first."""
    keys = ApiKey.objects.all()
    return keys if include_revoked else keys.filter(revoked_at=None)


def _live(key_id: int) -> ApiKey:
    """Return the row, locked where the database can, so that two rotations run one after the other."""
    key = ApiKey.objects.select_for_update().filter(id=key_id).first()
    if key is None:
        raise NotFound("No API key has that id.")
    if key.revoked_at is not None:
        raise Conflict("This API key is revoked. Create a new one.")
    return key


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    """Return `values` as stored. Raises InvalidRequest with one problem for each invalid value."""
    found = dict(values)
    problems: list[dict[str, str]] = []
    if "name" in found:
        found["name"] = str(found["name"]).strip()
        if not found["name"] or len(found["name"]) > NAME_LENGTH or not found["name"].isprintable():
            text = f"Enter a name of 1 to {NAME_LENGTH} printable characters."
            problems.append({"code": "name_invalid", "field": "name", "message": text})
    if "allowed_models" in found:
        found["allowed_models"] = list(dict.fromkeys(found["allowed_models"]))
        problems += _unknown_models(found["allowed_models"])
    expires_at = found.get("expires_at")
    if expires_at is not None and (expires_at.tzinfo is None or expires_at <= clock.now()):
        text = "Enter a time in the future with its time zone."
        problems.append({"code": "expiry_invalid", "field": "expiresAt", "message": text})
    for limit in LIMIT_NAMES:
        value = found.get(limit)
        if value is not None and not (type(value) is int and 1 <= value <= LIMIT_HIGHEST):
            text = f"Enter a whole number from 1 to {LIMIT_HIGHEST}, or leave it empty for no limit."
            problems.append({"code": "limit_invalid", "field": _OUTER[limit], "message": text})
    if problems:
        raise InvalidRequest("The key is invalid.", problems=problems)
    return found


_OUTER = {
    "requests_per_minute": "requestsPerMinute",
    "tokens_per_minute": "tokensPerMinute",
    "max_parallel": "maxParallel",
}


def _unknown_models(allowed: Sequence[str]) -> list[dict[str, str]]:
    known = set(ModelDefinition.objects.filter(id__in=allowed).values_list("id", flat=True))
    return [
        {"code": "model_unknown", "field": "allowedModels", "message": f"Model {model_id[:64]!r} does not exist."}
        for model_id in allowed
        if model_id not in known
    ]


def _written(key: ApiKey, actor: Actor, verb: str) -> None:
    routing.bump()
    audit_log.record("api-key", actor, target=f"{key.name} ({key.id})", detail=verb)
    transaction.on_commit(lambda: invalidations.changed("keys", str(key.id)))
