"""``manage.py api-key create|list|revoke``: keys of ``/v1`` from a shell."""
# ruff: noqa: N999  the module's name is the command's

from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, ProgrammingError

from mirbad.kernel import clock
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.values import parse_duration
from models_app import keys
from models_app.models import ApiKey


class Command(BaseCommand):
    """Creates, lists and revokes API keys. `create` writes only the new secret to standard output."""

    help = "Create, list and revoke API keys for /v1."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add a sub-command for each verb."""
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="create|list|revoke")
        create = verbs.add_parser("create", help="create a key and show it once")
        create.add_argument("name", help="name of the key, such as its purpose")
        create.add_argument("--model", action="append", default=[], metavar="ID", help="only this model (repeatable)")
        create.add_argument("--expires", metavar="TIME", help="lifetime such as 12h or 90d; default: never expires")
        verbs.add_parser("list", help="list keys; secrets are not kept and cannot be shown")
        revoke = verbs.add_parser("revoke", help="revoke a key at once")
        revoke.add_argument("key", help="number or name of the key, as in list")

    def handle(self, *_: Any, verb: str, **options: Any) -> None:
        """Do the verb; a refusal is one line and exit code 1."""
        try:
            {"create": self._create, "list": self._list, "revoke": self._revoke}[verb](options)
        except MirbadError as error:
            reasons = " ".join(problem["message"] for problem in error.problems)
            raise CommandError(f"{error.detail} {reasons}".strip()) from error
        except (OperationalError, ProgrammingError) as error:
            raise CommandError(f"The database is not usable: {error}. Run make up, or set MIRBAD_DATA.") from error

    def _create(self, options: dict[str, Any]) -> None:
        expires = None
        if options["expires"]:
            try:
                life = parse_duration(options["expires"])
            except ValueError as error:
                raise CommandError(f"--expires: {error}") from error
            if not isinstance(life, timedelta):
                raise CommandError("--expires: use a duration such as 12h or 90d")
            try:
                expires = clock.now() + life
            except OverflowError as error:
                raise CommandError("--expires: too long; leave it out for a key that never expires") from error
        row, secret = keys.create(
            options["name"], actor=CONFIG, allowed_models=tuple(options["model"]), expires_at=expires
        )
        self.stdout.write(secret)
        self.stderr.write(f"Created key {row.pk} ({row.name}). Copy it now; it won't be shown again.")

    def _list(self, _: dict[str, Any]) -> None:
        rows = list(ApiKey.objects.order_by("pk"))
        if not rows:
            self.stderr.write("No keys yet. Create one: manage.py api-key create NAME")
        for row in rows:
            models = ", ".join(row.allowed_models) if row.allowed_models else "all models"
            self.stdout.write(f"{row.pk}\t{row.name}\t{row.prefix}…\t{_state(row)}\t{models}")

    def _revoke(self, options: dict[str, Any]) -> None:
        wanted = options["key"]
        rows = ApiKey.objects.filter(revoked_at=None)
        rows = rows.filter(pk=int(wanted)) if wanted.isdigit() else rows.filter(name=wanted)
        found = list(rows)
        if len(found) != 1:
            words = "No active key" if not found else "More than one key"
            raise CommandError(f"{words} is named {wanted!r}. See manage.py api-key list.")
        keys.revoke(found[0].pk, CONFIG)
        self.stdout.write(f"Key {found[0].pk} ({found[0].name}) is revoked.")


def _state(row: ApiKey) -> str:
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at is None:
        return "valid"
    return f"{'valid until' if row.expires_at > clock.now() else 'expired'} {row.expires_at:%Y-%m-%d %H:%M} UTC"
