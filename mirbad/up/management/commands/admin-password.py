"""``manage.py admin-password [--set | --make]``: for a lost password."""
# ruff: noqa: N999  the module's name is the command's

import getpass
import secrets
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, ProgrammingError

from agent.common.files import write_text
from mirbad.accounts import passwords
from mirbad.accounts.errors import WeakPassword
from mirbad.accounts.people import ADMIN, set_admin
from mirbad.kernel.conf import settings


class Command(BaseCommand):
    """Shows the file of the password, sets a new one from a prompt, or creates one."""

    help = "Show the file of the admin's password; --set prompts for a new one, --make creates one."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the two options."""
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--set", action="store_true", help="prompt for a new password")
        which.add_argument("--make", action="store_true", help="create a new password and store it")

    def handle(self, *_: Any, **options: Any) -> None:
        """Show or change the password."""
        path = settings().secrets_dir / "admin-password"
        given = settings().admin_password
        if not (options["set"] or options["make"]):
            self._show(given)
            return
        if given is not None:
            raise CommandError("MIRBAD_ADMIN_PASSWORD sets the password at every start. Change or unset it instead.")
        if not path.parent.is_dir():
            raise CommandError(f"There is no data in {settings().data}. Run make up first, or set MIRBAD_DATA.")
        password = secrets.token_urlsafe(15) if options["make"] else self._ask()
        try:
            # the file first: the next start uses it
            write_text(path, password + "\n")
            set_admin(password, "the command admin-password")
        except (OperationalError, ProgrammingError) as error:
            raise CommandError(f"The database is not usable: {error}") from error
        self.stdout.write(f"The admin's new password is set, and stored in {path}. Open sessions were ended.")

    def _show(self, given: str | None) -> None:
        path = settings().secrets_dir / "admin-password"
        if given == "":
            self.stdout.write("Log-in is disabled: MIRBAD_ADMIN_PASSWORD is set but empty.")
        elif given is not None:
            self.stdout.write("The admin's password is set by MIRBAD_ADMIN_PASSWORD.")
        elif path.exists():
            self.stdout.write(f"The admin's password is in {path}")
        else:
            raise CommandError(f"There is no password in {settings().data} yet. Run make up first, or set MIRBAD_DATA.")

    def _ask(self) -> str:
        first = getpass.getpass("New password of admin: ")
        if first.strip() != first:
            raise CommandError("The password must not start or end with a space.")
        try:
            passwords.check(first, User(username=ADMIN))
        except WeakPassword as error:
            raise CommandError(error.detail) from error
        if getpass.getpass("Again: ") != first:
            raise CommandError("The passwords do not match. Nothing was changed.")
        return first
