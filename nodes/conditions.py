"""Reasons for which a node is Degraded, stored as rows. Each source owns its rows and writes all of them at once."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.live import invalidations
from nodes.models import NodeCondition


@dataclass(frozen=True, slots=True)
class Condition:
    """One reason. `subject` distinguishes several of one code (a model, a GPU); `detail` is a sentence for a person."""

    code: str
    detail: str
    subject: str = ""


CLOCK_TOLERANCE = timedelta(minutes=15)
"""The largest accepted difference between a node's clock and the master's. Certificates are issued an hour back in
time, so this much works.
"""

_ALARM_LEFT = 15 / 90


def certificate_alarm_at(now: datetime) -> datetime:
    """Return the moment before which a certificate that expires should have been renewed by `now`."""
    return now + settings().agent_certificate_life * _ALARM_LEFT


def note_certificate(node_id: str, not_after: datetime | None) -> bool:
    """Set or clear the condition that the certificate was not renewed in time: set once a sixth of its life is left."""
    if not_after is None or not_after > certificate_alarm_at(clock.now()):
        return replace(node_id, "certificate", [])
    verb = "expired" if not_after <= clock.now() else "expires"
    text = f"The node's certificate {verb} on {not_after:%Y-%m-%d %H:%M} UTC and was not renewed. "
    return replace(node_id, "certificate", [Condition("certificate_expires", text + "Rotate it or re-pair the node.")])


def note_clock(node_id: str, theirs: datetime | None) -> bool:
    """Set or clear the condition that the node's clock differs too much from the master's, with both times."""
    now = clock.now()
    if theirs is None or abs(theirs - now) <= CLOCK_TOLERANCE:
        return replace(node_id, "clock", [])
    text = (
        f"The node's clock says {theirs:%Y-%m-%d %H:%M} UTC while the master's says {now:%Y-%m-%d %H:%M} UTC. "
        "Correct the wrong clock, or certificates will fail."
    )
    return replace(node_id, "clock", [Condition("clock_differs", text)])


def replace(node_id: str, source: str, conditions: Iterable[Condition]) -> bool:
    """Replace all conditions of `source` on the node; return whether anything changed.

    A reason that stays keeps its `since`.
    """
    wanted = {(item.code[:40], item.subject[:120]): item.detail[:500] for item in conditions}
    # Mostly nothing has changed, and then no writer has to wait for the lock.
    if {(row.code, row.subject): row.detail for row in _stored(node_id, source)} == wanted:
        return False
    with transaction.atomic():
        stored = {(row.code, row.subject): row for row in _stored(node_id, source)}
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
        transaction.on_commit(lambda: invalidations.changed("nodes", node_id))
    return True


def _stored(node_id: str, source: str) -> Iterable[NodeCondition]:
    return NodeCondition.objects.filter(node_id=node_id, source=source)
