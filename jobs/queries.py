"""Questions about operations, answered with a number of statements that does not grow with the rows."""

from collections.abc import Iterable
from datetime import datetime

from django.db.models import OuterRef, Q, QuerySet, Subquery

from jobs.models import Operation
from mirbad.kernel.errors import NotFound


def unfinished() -> QuerySet[Operation]:
    """Operations that are not over."""
    return Operation.objects.filter(finished_at__isnull=True)


def due(now: datetime) -> Q:
    """Rows that a worker may take: not over, their time has come, and nobody holds them."""
    return Q(finished_at__isnull=True, next_run_at__lte=now) & (
        Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lte=now)
    )


def open_operation(lane: str, target_kind: str, target_id: str) -> Operation | None:
    """The one operation that is open in `lane` on the target, None when there is none."""
    return unfinished().filter(lane=lane, target_kind=target_kind, target_id=target_id).first()


def about_node(node_id: str) -> Q:
    """Operations that concern a node: done on it, with it, or taking a model off it."""
    return Q(node_id_text=node_id) | Q(kind="move", input__sourceNode=node_id)


def open_by_model(model_ids: Iterable[str]) -> dict[str, Operation]:
    """The open operation of each model that has one, the newest first; one statement for all."""
    rows = unfinished().filter(model_id_text__in=list(model_ids)).order_by("id")
    return {row.model_id_text: row for row in rows}


def last_by_model(model_ids: Iterable[str]) -> dict[str, Operation]:
    """The newest operation of each model, finished or not; one statement for all."""
    newest = Operation.objects.filter(model_id_text=OuterRef("model_id_text")).order_by("-id").values("pk")[:1]
    rows = Operation.objects.filter(model_id_text__in=list(model_ids), pk=Subquery(newest))
    return {row.model_id_text: row for row in rows}


def one_operation(operation_id: str) -> Operation:
    """An operation with its timeline. Raises NotFound."""
    row = Operation.objects.prefetch_related("events").filter(pk=operation_id).first()
    if row is None:
        raise NotFound(f"There is no operation {operation_id!r}.")
    return row
