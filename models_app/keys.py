"""Keys of `/v1`: made, listed and revoked. The secret is shown once; only its SHA-256 is kept."""

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from audit import log as audit_log
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import InvalidRequest, NotFound
from mirbad.live import hints
from models_app import routing
from models_app.models import ApiKey, ModelDefinition

PREFIX = "ssk_"
NAME_LENGTH = 100
_SHOWN_LENGTH = 12


def digest(secret: str) -> str:
    """What is kept of a key: its SHA-256, lower hex. A 256-bit random secret needs no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create(
    name: str, *, actor: Actor, allowed_models: Sequence[str] = (), expires_at: datetime | None = None
) -> tuple[ApiKey, str]:
    """A new key and its secret, which is never shown again. `allowed_models` are model ids; none means all.

    Raises InvalidRequest when the name is empty or too long, a model is unknown, or the expiry is past or naive.
    """
    name = name.strip()
    allowed = tuple(dict.fromkeys(allowed_models))
    problems = _problems(name, allowed, expires_at)
    if problems:
        raise InvalidRequest("The key cannot be made as asked.", problems=problems)
    secret = PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        key = ApiKey.objects.create(
            name=name,
            prefix=secret[:_SHOWN_LENGTH],
            digest=digest(secret),
            allowed_models=list(allowed),
            created_by=actor.name,
            expires_at=expires_at,
        )
        _written(key, actor, "created")
    return key, secret


def revoke(key_id: int, actor: Actor) -> ApiKey:
    """End a key for good; every process of the gateway refuses it within two seconds. A second time changes nothing.

    Raises NotFound.
    """
    with transaction.atomic():
        ended = ApiKey.objects.filter(id=key_id, revoked_at=None).update(revoked_at=clock.now())
        key = ApiKey.objects.filter(id=key_id).first()
        if key is None:
            raise NotFound("There is no API key of that id.")
        if ended:
            _written(key, actor, "revoked")
    return key


def listed(*, include_revoked: bool = False) -> QuerySet[ApiKey]:
    """The keys, newest first."""
    keys = ApiKey.objects.all()
    return keys if include_revoked else keys.filter(revoked_at=None)


def _problems(name: str, allowed: tuple[str, ...], expires_at: datetime | None) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    if not name or len(name) > NAME_LENGTH or not name.isprintable():
        text = f"Give the key a name of 1 to {NAME_LENGTH} printable characters."
        found.append({"code": "name_invalid", "field": "name", "message": text})
    known = set(ModelDefinition.objects.filter(id__in=allowed).values_list("id", flat=True))
    found += [
        {"code": "model_unknown", "field": "allowedModels", "message": f"There is no model {model_id[:64]!r}."}
        for model_id in allowed
        if model_id not in known
    ]
    if expires_at is not None and (expires_at.tzinfo is None or expires_at <= clock.now()):
        text = "Give a moment in the future, with its time zone."
        found.append({"code": "expiry_invalid", "field": "expiresAt", "message": text})
    return found


def _written(key: ApiKey, actor: Actor, verb: str) -> None:
    routing.bump()
    audit_log.record("api-key", actor, target=f"{key.name} ({key.id})", detail=verb)
    transaction.on_commit(lambda: hints.changed("keys", str(key.id)))
