"""``manage.py createsuperuser``: Django's command, with the rules of passwords enforced whichever way one is given."""

import os
from typing import Any

from django.contrib.auth.management.commands import createsuperuser
from django.core.management.base import CommandError

from mirbad.accounts import passwords
from mirbad.accounts.errors import WeakPassword

_VARIABLE = "DJANGO_SUPERUSER_PASSWORD"

# Django's command offers to bypass the rules when this raises a ValidationError. WeakPassword ends the command.
createsuperuser.validate_password = passwords.check  # type: ignore[attr-defined]  # imported there, not exported


class Command(createsuperuser.Command):
    """Creates nobody when the password breaks a rule."""

    def handle(self, *args: Any, **options: Any) -> None:
        """Create the account, or nothing."""
        try:
            if not options["interactive"] and _VARIABLE in os.environ:
                passwords.check(os.environ[_VARIABLE], source=_VARIABLE)
            super().handle(*args, **options)
        except WeakPassword as error:
            raise CommandError(error.detail) from error
