"""Reasons for which a node reads Degraded, kept as rows. Each source owns its rows and states all of them at once."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db import transaction

from mirbad.live import hints
from nodes.models import NodeCondition


@dataclass(frozen=True, slots=True)
class Condition:
    """One reason. `subject` tells several of one code apart (a model, a GPU); `detail` is a sentence for a person."""

    code: str
    detail: str
    subject: str = ""


def replace(node_id: str, source: str, conditions: Iterable[Condition]) -> bool:
    """Make `conditions` all that `source` says of the node; says whether that changed anything.

    A reason that stays keeps its `since`.
    """
    wanted = {(item.code[:40], item.subject[:120]): item.detail[:500] for item in conditions}
    with transaction.atomic():
        stored = {(row.code, row.subject): row for row in NodeCondition.objects.filter(node_id=node_id, source=source)}
        gone = [row.pk for key, row in stored.items() if key not in wanted]
        changed = [row for key, row in stored.items() if key in wanted and row.detail != wanted[key]]
        fresh = [
            NodeCondition(node_id=node_id, source=source, code=code, subject=subject, detail=detail)
            for (code, subject), detail in wanted.items()
            if (code, subject) not in stored
        ]
        if not (gone or changed or fresh):
            return False
        if gone:
            NodeCondition.objects.filter(pk__in=gone).delete()
        for row in changed:
            row.detail = wanted[row.code, row.subject]
        NodeCondition.objects.bulk_update(changed, ["detail"])
        NodeCondition.objects.bulk_create(fresh, ignore_conflicts=True)
        transaction.on_commit(lambda: hints.changed("nodes", node_id))
    return True
