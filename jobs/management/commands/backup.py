"""``manage.py backup create|verify|inspect|restore FILE``: also while Mirbad does not run."""

import getpass
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, ProgrammingError

from jobs.backup import making, verification
from jobs.backup.container import BackupManifest
from jobs.management import restoring
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.errors import MirbadError


class Command(BaseCommand):
    """Makes, checks, shows and imports backups."""

    help = "Make a backup, check that one can be opened, show what one holds, or import one."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Add one subcommand for each verb."""
        verbs = parser.add_subparsers(dest="verb", required=True)
        create = verbs.add_parser("create", help="write a backup of this moment and open it again")
        verify = verbs.add_parser("verify", help="read a backup to its last byte, the secrets too")
        inspect = verbs.add_parser("inspect", help="show the manifest; needs no passphrase")
        restore = verbs.add_parser("restore", help="import models, keys and settings into this master")
        for verb in (create, verify, inspect, restore):
            verb.add_argument("file", type=Path, help="the file of the backup")
        restoring.add_arguments(restore)
        for verb in (create, verify, restore):
            secrets = verb.add_mutually_exclusive_group()
            secrets.add_argument(
                "--passphrase-file", type=Path, help="read the passphrase from the first line of a file; - is stdin"
            )
            secrets.add_argument("--without-secrets", action="store_true", help="leave keys, people, CA and pins out")

    def handle(self, *_: Any, verb: str, file: Path, **options: Any) -> None:
        """Do what the verb says."""
        try:
            if verb == "inspect":
                self._show(verification.inspect(file))
                return
            passphrase = self._passphrase(twice=verb == "create", **options)
            if verb == "restore":
                restoring.run(self.stdout, file, passphrase, options)
                return
            if verb == "verify":
                self._show(verification.verify(file, passphrase))
                self.stdout.write("Every part was read" + (" and opened." if passphrase is not None else "."))
                return
            made = making.create(file, passphrase, CONFIG)
        except EOFError as error:
            text = "Nobody is there to ask. Add --passphrase-file FILE, and --yes to restore."
            raise CommandError(text) from error
        except MirbadError as error:
            raise CommandError(error.detail) from error
        except (OperationalError, ProgrammingError) as error:
            raise CommandError(f"The database is not usable: {error}") from error
        except OSError as error:
            raise CommandError(f"{error.filename or file}: {error.strerror}") from error
        self._show(made.manifest)
        self.stdout.write(f"{made.path}: {made.bytes / 1e6:.2f} MB, written and opened again.")
        if passphrase is None:
            self.stderr.write("It has no secrets: models can be imported from it, a lost master cannot be rebuilt.")

    def _passphrase(self, *, twice: bool, passphrase_file: Path | None, without_secrets: bool, **_: Any) -> str | None:
        if without_secrets:
            return None
        if passphrase_file is not None:
            text = sys.stdin.readline() if str(passphrase_file) == "-" else passphrase_file.read_text()
            passphrase = text.partition("\n")[0].rstrip("\r")
        else:
            passphrase = getpass.getpass("Passphrase of the backup: ")
            if twice and getpass.getpass("Again: ") != passphrase:
                raise CommandError("The passphrases do not match. Nothing was written.")
        if not passphrase:
            raise CommandError("The passphrase is empty. Enter one, or add --without-secrets.")
        return passphrase

    def _show(self, manifest: BackupManifest) -> None:
        made = f"{manifest.created_at:%Y-%m-%d %H:%M:%S} UTC"
        self.stdout.write(f"Backup of {manifest.instance_id}, made {made} by Mirbad {manifest.mirbad_version}")
        counted = ", ".join(f"{count} {kind}" for kind, count in sorted(manifest.counts.items()) if kind != "binding")
        self.stdout.write(f"Records: {counted or 'none'}")
        if not manifest.has_secrets:
            self.stdout.write("Secrets: none")
        else:
            self.stdout.write(f"Secrets: sealed, {'with' if manifest.ca_sha256 else 'without'} the key of the CA")
