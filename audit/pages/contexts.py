"""The view-model of the audit page."""

from dataclasses import dataclass
from datetime import datetime

from audit import checkpoints, queries
from audit.models import AuditLine

PAGE_SIZE = 100


@dataclass(frozen=True, slots=True)
class HeadShown:
    """The newest signed head, and the nodes that witnessed it."""

    size: int
    root: str
    key: str
    at: datetime
    witnesses: tuple[str, ...]


def head() -> HeadShown | None:
    """Return the newest signed head; None before the first. One query."""
    newest = checkpoints.latest()
    if newest is None:
        return None
    signed = checkpoints.head_of(newest)
    return HeadShown(signed.size, signed.root, signed.key, newest.created_at, tuple(sorted(newest.witnesses)))


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of the page; an empty one matches everything."""

    node: str = ""
    model: str = ""
    action: str = ""
    result: str = ""
    before: int | None = None


def find(filters: Filters) -> tuple[list[AuditLine], int | None]:
    """Return a page of lines, newest first, and the start of the next page. One query."""
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
