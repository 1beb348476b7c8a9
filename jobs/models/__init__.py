"""Rows of the jobs app."""

from jobs.models.backup import Backup, BackupDestination
from jobs.models.operation import Operation, OperationEvent

__all__ = ["Backup", "BackupDestination", "Operation", "OperationEvent"]
