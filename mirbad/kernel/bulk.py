"""Writes of many rows in one statement, each with its own values."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection
from django.db.models import Field, Model


def update_each(model: type[Model], columns: Sequence[str], rows: Iterable[tuple[Any, Sequence[Any]]]) -> None:
    """Set `columns` of each ``(primary key, values)`` in `rows`, by one prepared statement that is run for each.

    Without conditions: read the rows `select_for_update` in the same transaction first, in the order of their keys.
    """
    meta = model._meta  # noqa: SLF001 - Django's documented face of a model's columns
    fields: list[Field[Any, Any]] = [field for name in columns if isinstance(field := meta.get_field(name), Field)]
    prepared = [
        (
            *(field.get_db_prep_save(value, connection) for field, value in zip(fields, values, strict=True)),
            meta.pk.get_db_prep_save(pk, connection),
        )
        for pk, values in rows
    ]
    if not prepared:
        return
    quote = connection.ops.quote_name
    assignments = ", ".join(f"{quote(str(field.column))} = %s" for field in fields)
    table, key = quote(meta.db_table), quote(str(meta.pk.column))
    with connection.cursor() as cursor:
        sql = f"UPDATE {table} SET {assignments} WHERE {key} = %s"  # noqa: S608 - of names of a model's own columns
        cursor.executemany(sql, prepared)


def insert_new(model: type[Model], columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Insert `rows` of `columns`, by one prepared statement; a row that violates a unique constraint is skipped.

    Defaults are the database's, so name every column that has none there.
    """
    meta = model._meta  # noqa: SLF001 - Django's documented face of a model's columns
    fields: list[Field[Any, Any]] = [field for name in columns if isinstance(field := meta.get_field(name), Field)]
    prepared = [
        tuple(field.get_db_prep_save(value, connection) for field, value in zip(fields, row, strict=True))
        for row in rows
    ]
    if not prepared:
        return
    quote = connection.ops.quote_name
    names = ", ".join(quote(str(field.column)) for field in fields)
    places = ", ".join(["%s"] * len(fields))
    with connection.cursor() as cursor:
        table = quote(meta.db_table)
        sql = f"INSERT INTO {table} ({names}) VALUES ({places}) ON CONFLICT DO NOTHING"  # noqa: S608 - names of ours
        cursor.executemany(sql, prepared)
