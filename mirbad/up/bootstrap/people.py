"""The admin's account and the first API key: what a person needs to use Mirbad at all."""

import hashlib
from pathlib import Path

from django.db import transaction

from mirbad.accounts.people import ensure_admin
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.conf import settings
from mirbad.up.folder import write_private

FIRST_KEY_NAME = "first key"


def password_path() -> Path:
    """Where the admin's password lies when Mirbad made it."""
    return settings().secrets_dir / "admin-password"


def key_path() -> Path:
    """Where the first API key lies."""
    return settings().secrets_dir / "api-key"


def ensure_password() -> None:
    """Give the admin the password that is set, else the stored one. A set but empty one disables log-in."""
    given = settings().admin_password
    ensure_admin(password_path().read_text().strip() if given is None else given)


def ensure_first_key() -> str | None:
    """The first API key, made once. None when there is no usable one, because somebody revoked it on purpose."""
    from models_app import keys
    from models_app.models import ApiKey

    path = key_path()
    if path.exists():
        secret = path.read_text().strip()
        row = ApiKey.objects.filter(digest=hashlib.sha256(secret.encode()).hexdigest()).first()
        if row is not None:
            return secret if row.revoked_at is None else None
    with transaction.atomic():
        # the file first: a crash in between leaves a file without a row, which the next run replaces
        _, secret = keys.create(FIRST_KEY_NAME, actor=CONFIG)
        write_private(path, secret + "\n")
    return secret
