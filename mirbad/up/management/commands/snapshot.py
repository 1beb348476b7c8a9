"""``manage.py snapshot [FOLDER]``: a consistent copy of the data folder while Mirbad runs."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.up import snapshot
from mirbad.up.errors import CannotStart


class Command(BaseCommand):
    """Copies database, secrets, audit files and the own agent's state; leaves out logs and model files."""

    help = "Copy the data folder, consistently, while Mirbad runs (logs and model files are left out)."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """The folder to make."""
        parser.add_argument(
            "folder", nargs="?", type=Path, help="new folder for the copy; MIRBAD_DATA/snapshots/<time> if not given"
        )

    def handle(self, *_: Any, folder: Path | None, **__: Any) -> None:
        """Take the copy and say what is in it."""
        data = settings().data
        own_database = not settings().database_url
        if own_database and not (data / "mirbad.sqlite3").exists():
            raise CommandError(f"There is no data in {data}. Set MIRBAD_DATA to the folder that make up uses.")
        target = folder or data / "snapshots" / clock.now().strftime("%Y-%m-%dT%H%M%SZ")
        try:
            taken = snapshot.take(data, target, own_database=own_database)
        except CannotStart as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"The copy could not be written: {error.strerror} ({error.filename})") from error
        self.stdout.write(f"{taken.path}: {taken.files} files, {taken.size_bytes / 1e6:.1f} MB")
        self.stderr.write("It holds the secret key and all secrets: keep it as safe as the data folder itself.")
        if not taken.with_database:
            self.stderr.write("The rows are in PostgreSQL and not in this copy: add a dump made with pg_dump.")
