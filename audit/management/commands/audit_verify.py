"""``manage.py audit_verify`` says whether anyone changed the audit log."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from audit.seal import seal_once, verify


class Command(BaseCommand):
    """Follows the hash chain through the database and the files; exit code 1 at the first break."""

    help = "Check that no audit line was changed, removed or put in."

    def handle(self, *args: Any, **options: Any) -> None:
        """Seal what is new, then check everything."""
        while seal_once():
            pass
        verdict = verify()
        for where, broken in (("database", verdict.in_database), ("files", verdict.in_files)):
            if broken is not None:
                self.stderr.write(f"{where}: {broken.reason}")
        if not verdict.holds:
            raise CommandError("The audit log was tampered with, or parts of it are lost.")
        self.stdout.write(f"{verdict.lines} lines, unbroken.")
