"""``manage.py createsuperuser``: Django's command, with the rules of passwords enforced whichever way one is given, and
recorded in the audit log.
"""

import os
from typing import Any

from django.contrib.auth.management.commands import createsuperuser
from django.contrib.auth.models import User
from django.core.management.base import CommandError

from audit import log as audit
from mirbad.accounts import passwords
from mirbad.accounts.errors import WeakPassword
from mirbad.kernel.actor import CONFIG

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
            known = list(User.objects.values_list("pk", flat=True))
            # In no transaction: the command asks questions, and on SQLite nobody else could write meanwhile.
            super().handle(*args, **options)
            for made in User.objects.exclude(pk__in=known):
                detail = "created as an owner by the command createsuperuser"
                audit.record("person", CONFIG, target=made.get_username(), detail=detail)
        except WeakPassword as error:
            raise CommandError(error.detail) from error
