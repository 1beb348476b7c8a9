"""``manage.py snapshot [FOLDER]``: a consistent copy of the data folder while Mirbad runs."""

import contextlib
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Unavailable
from mirbad.kernel.seal import SealBroken
from mirbad.up import programs, snapshot
from mirbad.up.errors import CannotStart
from nodes.pki import store

_KEY = "secrets/secret-key"


class Command(BaseCommand):
    """Copies database, secrets, audit files and the bootstrap node's agent state; leaves out logs and model files."""

    help = "Copy the data folder, consistently, while Mirbad runs (logs and model files are left out)."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the target folder, and what becomes of a secret key that is not in the data folder."""
        parser.add_argument(
            "folder", nargs="?", type=Path, help="new folder for the copy; MIRBAD_DATA/snapshots/<time> if not given"
        )
        key = parser.add_mutually_exclusive_group()
        key.add_argument("--with-key", action="store_true", help="put the key of MIRBAD_SECRET_KEY into the copy")
        key.add_argument("--without-key", action="store_true", help="leave the secret key out: you keep it elsewhere")

    def handle(self, *_: Any, folder: Path | None, with_key: bool, without_key: bool, **__: Any) -> None:
        """Take the copy and report its content."""
        data = settings().data
        own_database = not settings().database_url
        if own_database and not (data / "mirbad.sqlite3").exists():
            raise CommandError(f"There is no data in {data}. Set MIRBAD_DATA to the folder that make up uses.")
        added = _key_to_add(with_key=with_key, without_key=without_key)
        left_out = [_KEY] if without_key or added else []
        with contextlib.suppress(ValueError):
            left_out.append(str(programs.models_root(data).relative_to(data)))
        target = folder or data / "snapshots" / clock.now().strftime("%Y-%m-%dT%H%M%SZ")
        try:
            taken = snapshot.take(data, target, own_database=own_database, leave_out=tuple(left_out), added=added)
        except CannotStart as error:
            raise CommandError(str(error)) from error
        except OSError as error:
            raise CommandError(f"Writing the copy failed: {error.strerror} ({error.filename})") from error
        self.stdout.write(f"{taken.path}: {taken.files} files, {taken.size_bytes / 1e6:.1f} MB")
        self.stderr.write(
            "The copy contains no secret key: keep MIRBAD_SECRET_KEY, without which nobody can restore it."
            if without_key
            else "The copy contains the secret key and all secrets: protect it like the data folder itself."
        )
        if not taken.with_database:
            self.stderr.write("The database is in PostgreSQL and not in this copy: add a pg_dump.")


def _key_to_add(*, with_key: bool, without_key: bool) -> dict[str, str]:
    """Return the file with the secret key, if the data folder lacks it and the person wants it in the copy.

    Whoever gives the key by environment keeps it off this disk, so it is not written there unasked; and a copy that
    nobody can open is not made unasked. Raises CommandError.
    """
    key = settings().secret_key
    if not key:
        raise CommandError("The secret key is not in the data folder. Set MIRBAD_SECRET_KEY as for make up.")
    try:
        store.client_identity(store.master())
    except SealBroken as error:
        raise CommandError(f"{error.detail} Run this command with the environment of make up.") from error
    except (Unavailable, DatabaseError):
        pass  # before the first start nothing is sealed
    stored = settings().data / _KEY
    if without_key or (stored.is_file() and stored.read_text().strip() == key):
        return {}
    if with_key:
        return {_KEY: f"{key}\n"}
    raise CommandError(
        "The secret key is given by MIRBAD_SECRET_KEY and is not in the data folder, so the copy alone could not be "
        "restored. Add --with-key to put it into the copy, or --without-key if you keep it in another place."
    )
