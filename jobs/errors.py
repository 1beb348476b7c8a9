"""Errors of the jobs app.

MirbadError
├── BackupDestinationFailed      409
├── BackupExists                 409
├── BackupUnsuitable             400
├── MasterNotEmpty               409
├── RecoveryMode                 503
├── RestoreChanged               409
├── LeaseLost                    internal: another worker has the operation
└── StepFailed                   internal: a step ends the operation, or is to be tried again
"""

from collections.abc import Sequence

from mirbad.kernel.errors import MirbadError


class BackupDestinationFailed(MirbadError):
    """A destination of backups does not do what it should; the sentence says what to check there."""

    code = "backup_destination_failed"
    http_status = 409


class BackupExists(MirbadError):
    """There is a file with the name of the new backup."""

    code = "backup_exists"
    http_status = 409


class BackupUnsuitable(MirbadError):
    """A file is no backup that this Mirbad can use: it is another file, damaged, or sealed by another passphrase."""

    code = "backup_unsuitable"
    http_status = 400


class MasterNotEmpty(MirbadError):
    """A fleet is recovered on an empty master only; `problems` lists what this one has."""

    code = "master_not_empty"
    http_status = 409


class RecoveryMode(MirbadError):
    """The master is in recovery mode: it waits for a backup, and does nothing else."""

    code = "recovery_mode"
    http_status = 503


class RestoreChanged(MirbadError):
    """The master changed since the preview of an import, so that something else would be written."""

    code = "restore_changed"
    http_status = 409


class LeaseLost(MirbadError):
    """Another worker has claimed the operation; the result of this step must not be written."""

    code = "lease_lost"


class StepFailed(MirbadError):
    """A failed step. `final` ends the operation; otherwise it is tried again. `lines` are the engine's last lines."""

    code = "step_failed"

    def __init__(self, code: str, detail: str, *, final: bool, lines: Sequence[str] = ()) -> None:
        super().__init__(detail)
        self.step_code = code
        self.final = final
        self.lines = tuple(lines)
