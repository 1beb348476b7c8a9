"""``manage.py changepassword``: Django's command, recorded in the audit log."""

import getpass
from typing import Any

from django.contrib.auth.management.commands import changepassword

from audit import log as audit
from mirbad.kernel.actor import CONFIG


class Command(changepassword.Command):
    """Changes the password and records that it was changed, never the password."""

    def handle(self, *args: Any, **options: Any) -> str | None:
        """Prompt for the new password of one account and set it."""
        # In no transaction: the command asks questions, and on SQLite nobody else could write meanwhile.
        done: str | None = super().handle(*args, **options)
        target = options["username"] or getpass.getuser()
        audit.record("person", CONFIG, target=target, detail="password changed by the command changepassword")
        return done
