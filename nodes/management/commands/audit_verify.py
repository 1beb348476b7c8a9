"""``manage.py audit_verify``: check the audit log for changes."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from audit.seal import seal_once
from audit.verification import verify
from nodes import witnesses


class Command(BaseCommand):
    """Follows the hash chain through database and files, and compares signed heads and those that nodes saw; exit code
    1 at the first break.
    """

    help = "Check that no audit line was changed, removed or inserted, against the nodes that witnessed the log, too."

    def handle(self, *args: Any, **options: Any) -> None:
        """Check first, as the log is; seal new lines afterwards, and only when nothing was changed."""
        views, silent = witnesses.views()
        seen = {f"node {node_id}": view.held for node_id, view in views.items() if view.held is not None}
        refusals = {node_id: view.refused.size for node_id, view in views.items() if view.refused is not None}
        verdict = verify(seen)
        for node_id, size in refusals.items():
            self.stderr.write(
                f"node {node_id}: refused a log of {size} lines that does not continue what it saw before"
            )
        for node_id, view in views.items():
            for left in view.breaks:
                what = f"took {left.now.name} in place of {left.was.name}"
                self.stdout.write(f"node {node_id}: at {left.time} {what}, decided by {left.line}")
        for where, broken in verdict.breaks:
            self.stderr.write(f"{where}: {broken.reason}")
        if silent:
            self.stderr.write(f"Not asked as witnesses, or without an answer: {', '.join(silent)}.")
        if not verdict.holds or refusals:
            raise CommandError("The audit log was changed, or parts of it are lost. Nothing was sealed or repaired.")
        while seal_once():
            pass
        counts = f"{verdict.checkpoints} signed heads, {len(seen)} witnesses agree, {verdict.unsealed} lines sealed now"
        self.stdout.write(f"{verdict.lines} lines, unbroken; {counts}.")
