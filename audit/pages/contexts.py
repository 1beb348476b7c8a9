"""The view-model of the audit page."""

from dataclasses import dataclass

from audit import queries
from audit.models import AuditLine

PAGE_SIZE = 100


@dataclass(frozen=True, slots=True)
class Filters:
    """What a person looks for; empty is everything."""

    node: str = ""
    model: str = ""
    action: str = ""
    result: str = ""
    before: int | None = None


def find(filters: Filters) -> tuple[list[AuditLine], int | None]:
    """A page of lines, newest first, and where the next one begins. One query."""
    lines = queries.lines(node_id=filters.node, model_id=filters.model)
    if filters.action:
        lines = lines.filter(action=filters.action)
    if filters.result:
        lines = lines.filter(result=filters.result)
    if filters.before is not None:
        lines = lines.filter(pk__lt=filters.before)
    rows = list(lines[: PAGE_SIZE + 1])
    following = rows[PAGE_SIZE - 1].pk if len(rows) > PAGE_SIZE else None
    return rows[:PAGE_SIZE], following
