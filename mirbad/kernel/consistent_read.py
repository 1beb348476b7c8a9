"""Reads of many rows that belong to one moment, while others write."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


@contextmanager
def consistent_read() -> Iterator[None]:
    """Read in one transaction that sees no write of others, and keeps nobody from writing. Write nothing in it.

    RuntimeError inside of another transaction.
    """
    if connection.vendor == "sqlite":
        # Transactions of this project take the write lock at once; a deferred one holds a snapshot of the WAL instead.
        connection.ensure_connection()
        usual, connection.transaction_mode = connection.transaction_mode, "DEFERRED"  # type: ignore[attr-defined]  # SQLite's
        try:
            with transaction.atomic(durable=True):
                yield
        finally:
            connection.transaction_mode = usual  # type: ignore[attr-defined]  # the same
        return
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield
