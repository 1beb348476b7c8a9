"""``manage.py admin-password [--set | --make]``: for who has lost it."""
# ruff: noqa: N999  the module's name is the command's

import getpass
import secrets
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, ProgrammingError

from mirbad.accounts.people import ensure_admin
from mirbad.kernel.conf import settings
from mirbad.up.folder import write_private

_SHORTEST = 8


class Command(BaseCommand):
    """Says where the password lies, takes a new one at a prompt, or makes one."""

    help = "Show where the admin's password lies; --set asks for a new one, --make makes one."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Which of the two."""
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--set", action="store_true", help="ask for a new password")
        which.add_argument("--make", action="store_true", help="make a new password and store it")

    def handle(self, *_: Any, **options: Any) -> None:
        """Show or change."""
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
            # the file first: it is what the next start goes by
            write_private(path, password + "\n")
            ensure_admin(password)
        except (OperationalError, ProgrammingError) as error:
            raise CommandError(f"The database cannot be used: {error}") from error
        self.stdout.write(f"The new password of admin is set and lies in {path}. Open sessions have ended.")

    def _show(self, given: str | None) -> None:
        path = settings().secrets_dir / "admin-password"
        if given == "":
            self.stdout.write("Log-in is disabled: MIRBAD_ADMIN_PASSWORD is set but empty.")
        elif given is not None:
            self.stdout.write("The password of admin is the one in MIRBAD_ADMIN_PASSWORD.")
        elif path.exists():
            self.stdout.write(f"The password of admin lies in {path}")
        else:
            raise CommandError(f"No password was made in {settings().data} yet. Run make up first, or set MIRBAD_DATA.")

    def _ask(self) -> str:
        first = getpass.getpass("New password of admin: ")
        if len(first) < _SHORTEST:
            raise CommandError(f"Give at least {_SHORTEST} characters.")
        if first.strip() != first:
            raise CommandError("A password that begins or ends with a space cannot be stored in its file.")
        if getpass.getpass("Again: ") != first:
            raise CommandError("The two are not the same; nothing was changed.")
        return first
