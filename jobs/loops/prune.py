"""Deletes operations and ends of engines of long ago, with their timelines. The audit log keeps its lines."""

from django.db.models import Max

from jobs.models import Operation
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from models_app.models import EngineExit

AT_ONCE = 500
"""Rows deleted in one statement: other writers wait for no more than these."""

_MOST = 20


def prune_once() -> int:
    """Delete operations that ended longer ago than `MIRBAD_OPERATION_RETENTION` (0 keeps them all); return how many.

    Ends of engines go with them; each model has a bounded number.

    Never an open one, and not the newest of a model or of a node: the last event of each can always be read.
    """
    keep = settings().operation_retention
    if not keep:
        return 0
    EngineExit.objects.filter(at__lt=clock.now() - keep).delete()
    kept = set(_newest("model_id_text")) | set(_newest("node_id_text"))
    old = Operation.objects.filter(finished_at__lt=clock.now() - keep)
    pruned = 0
    for _ in range(_MOST):
        ids = [pk for pk in old.order_by("pk").values_list("pk", flat=True)[: AT_ONCE + len(kept)] if pk not in kept]
        if not ids:
            break
        old.filter(pk__in=ids[:AT_ONCE]).delete()
        pruned += len(ids[:AT_ONCE])
    return pruned


def _newest(column: str) -> list[str]:
    """Return the id of the newest operation of each model, or node. Ids grow with time."""
    rows = Operation.objects.exclude(**{column: ""}).values(column).annotate(newest=Max("pk")).order_by()
    return [row["newest"] for row in rows]
