"""``manage.py status [--json]``: processes, nodes and models, as text."""

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, ProgrammingError

from mirbad.up import state


class Command(BaseCommand):
    """Exit code 0 when all is well, 1 when something needs a person."""

    help = "Show the state of processes, nodes and models. Exit code 1 when something needs attention."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the output format."""
        parser.add_argument("--json", action="store_true", help="as one JSON object")

    def handle(self, *_: Any, **options: Any) -> None:
        """Print the state."""
        try:
            seen = state.read()
        except (OperationalError, ProgrammingError) as error:
            raise CommandError(
                f"The database is not usable ({error}). Run make up first, or set MIRBAD_DATA or DATABASE_URL."
            ) from error
        if options["json"]:
            self.stdout.write(json.dumps(seen.as_json(), indent=2))
        else:
            self.stdout.write("\n".join(seen.as_words()))
        if seen.needs_attention():
            raise SystemExit(1)
