"""The admin's account and the first API key: the minimum to use Mirbad."""

import hashlib
from pathlib import Path

from django.db import transaction

from agent.common.files import write_text
from mirbad.accounts.people import set_admin
from mirbad.kernel import clock
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.conf import settings

FIRST_KEY_NAME = "first key"


def password_path() -> Path:
    """The file of the admin's password when Mirbad created it."""
    return settings().secrets_dir / "admin-password"


def key_path() -> Path:
    """The file of the first API key."""
    return settings().secrets_dir / "api-key"


def ensure_password() -> None:
    """Give the admin the configured password, else the stored one. A set but empty one disables log-in.

    Raises WeakPassword.
    """
    given = settings().admin_password
    if given is None:
        set_admin(password_path().read_text().strip(), str(password_path()))
    else:
        set_admin(given, "MIRBAD_ADMIN_PASSWORD")


def ensure_first_key() -> str | None:
    """Return the first API key, created once. None when it was revoked on purpose."""
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
        # After a recovery the backup's own is there, too.
        taken = ApiKey.objects.filter(name=FIRST_KEY_NAME).exists()
        name = f"{FIRST_KEY_NAME} of {clock.now():%Y-%m-%d}" if taken else FIRST_KEY_NAME
        _, secret = keys.create(name, actor=CONFIG)
        write_text(path, secret + "\n")
    return secret
