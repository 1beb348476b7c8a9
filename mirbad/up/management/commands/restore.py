"""``manage.py restore FOLDER``: put a snapshot in the place of the data, while Mirbad is stopped."""

import os
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from mirbad.kernel import seal
from mirbad.kernel.conf import BadSettings, given_secret_key, settings
from mirbad.up import folder, programs, restore
from mirbad.up.errors import CannotStart
from nodes.pki import store


def _opens(sealed: bytes, key: str) -> bool:
    return seal.opens(sealed, store.CLIENT_KEY, key)


class Command(BaseCommand):
    """Restores database, secrets, audit files and the state of the bootstrap node; models and logs stay."""

    help = "Put a snapshot in the place of the data folder's content. Models stay; what was there before is kept."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the snapshot."""
        parser.add_argument("folder", type=Path, help="a folder that manage.py snapshot made")

    def handle(self, *_: Any, folder: Path, **__: Any) -> None:
        """Restore and report what became of the data."""
        try:
            done = _restore(folder)
        except (CannotStart, BadSettings) as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(
                f"The restore failed: {error.strerror} ({error.filename}). Fix it and run the command again."
            ) from error
        self.stdout.write(f"Restored {folder} to {settings().data}. Start it with make up.")
        if done.before is not None:
            self.stdout.write(f"What was there before is in {done.before}; remove it when all is well.")
        if not done.with_database:
            self.stderr.write("The database is in PostgreSQL: restore the pg_dump of the same moment, too.")


def _restore(source: Path) -> restore.Restored:
    data = settings().data
    lock = folder.Lock(data)
    if restore.is_interrupted(data):
        lock.take()
        restore.finish(data)
    folder.prepare(data)
    lock.take()
    return restore.restore(
        data,
        source,
        own_database=not settings().database_url,
        models=programs.models_root(data),
        given_key=given_secret_key(os.environ),
        opens=_opens,
    )
