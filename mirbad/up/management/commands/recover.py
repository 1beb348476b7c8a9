"""``manage.py recover FILE``: an empty master becomes the one of a backup, while Mirbad is stopped."""

import getpass
import os
import sys
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, ProgrammingError

from jobs.backup import installation
from jobs.backup.recovery import Recovered
from mirbad.kernel import conf
from mirbad.kernel.conf import BadSettings, given_secret_key
from mirbad.kernel.errors import MirbadError
from mirbad.up import folder
from mirbad.up.errors import CannotStart

PHRASE = "the previous master is stopped"


class Command(BaseCommand):
    """Recovers identity, CA, nodes, models, keys and people; the next start takes the nodes over."""

    help = "Make an empty master the one of a backup. The previous master must be stopped, for good."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the backup, its passphrase, and the confirmation."""
        parser.add_argument("file", type=Path, help="a backup that manage.py backup made, with secrets")
        parser.add_argument(
            "--passphrase-file", type=Path, help="read the passphrase from the first line of a file; - is stdin"
        )
        parser.add_argument("--confirm", help=f'"{PHRASE}"; asked for if it is not given')

    def handle(self, *_: Any, file: Path, passphrase_file: Path | None, confirm: str | None, **__: Any) -> None:
        """Recover and report what is left to do."""
        try:
            said = input(f'Type "{PHRASE}": ') if confirm is None else confirm
        except EOFError as error:
            raise CommandError("Nobody is there to ask. Add --passphrase-file FILE and --confirm.") from error
        if said.strip() != PHRASE:
            raise CommandError(f'Nothing was changed. Stop the previous master, then confirm with "{PHRASE}".')
        try:
            passphrase = _passphrase(passphrase_file)
            done = self._recover(file, passphrase)
        except (CannotStart, BadSettings) as error:
            raise CommandError(str(error)) from error
        except MirbadError as error:
            raise CommandError(error.detail) from error
        except (OperationalError, ProgrammingError) as error:
            raise CommandError(f"The database is not usable: {error}") from error
        except OSError as error:
            raise CommandError(f"{error.filename or file}: {error.strerror}") from error
        counts = done.manifest.counts
        self.stdout.write(
            f"Recovered {counts.get('member', 0)} nodes, {counts.get('model', 0)} models, {counts.get('api-key', 0)} "
            f"API keys and {counts.get('person', 0)} people from {file}."
        )
        for note in done.notes:
            self.stdout.write(f"- {note}")
        self.stdout.write("Start it with make up: it takes the nodes over, and their engines keep running.")

    def _recover(self, file: Path, passphrase: str) -> Recovered:
        chosen = conf.settings()
        file.open("rb").close()
        lock = folder.Lock(chosen.data)
        folder.prepare(chosen.data)
        lock.take()
        folder.ensure_secret_key(chosen.data, given_secret_key(os.environ), database_is_ours=not chosen.database_url)
        # The key was made a moment ago, and the settings of this process do not know it yet.
        conf.settings.cache_clear()
        call_command("migrate", verbosity=0, interactive=False)
        asked_by = f"{getpass.getuser()} with manage.py recover"
        return installation.install(file, passphrase, asked_by)


def _passphrase(path: Path | None) -> str:
    if path is None:
        return getpass.getpass("Passphrase of the backup: ")
    text = sys.stdin.readline() if str(path) == "-" else path.read_text()
    return text.partition("\n")[0].rstrip("\r")
