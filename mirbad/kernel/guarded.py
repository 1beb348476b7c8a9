"""Guarded writes: one conditional UPDATE whose row count is checked."""

from typing import Any, TypeVar

from django.db.models import Model, QuerySet

from mirbad.kernel.errors import Conflict
from mirbad.kernel.states import StateTable

M = TypeVar("M", bound=Model)


def transition(rows: QuerySet[M], table: StateTable, column: str, target: str, **also: Any) -> None:
    """Move exactly one row to `target`, in one statement; `also` are further columns to set.

    Raises Conflict when the row is not in a state that leads to `target`, or is gone.
    """
    if not try_transition(rows, table, column, target, **also):
        raise Conflict(f"This {table.name} cannot become {target} from its present state.")


def try_transition(rows: QuerySet[M], table: StateTable, column: str, target: str, **also: Any) -> bool:
    """Like `transition`, but return whether it happened instead of raising."""
    sources = table.sources(target)
    return rows.filter(**{f"{column}__in": sources}).update(**{column: target}, **also) == 1
