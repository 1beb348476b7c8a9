"""Rows of the jobs app."""

from jobs.models.operation import Operation, OperationEvent

__all__ = ["Operation", "OperationEvent"]
