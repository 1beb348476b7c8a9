"""View-models of the nodes as witnesses of the audit log."""

import json
from dataclasses import dataclass
from datetime import datetime

from agent.wire.witness import AcceptedBreak, AuditHead, WitnessView
from nodes import accepted_logs
from nodes.models import NodeWitness
from nodes.states import APPROVED


@dataclass(frozen=True, slots=True)
class BreakLine:
    """A head that a node left, the one that it took, and who decided why."""

    was: str
    now: str
    time: str
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class WitnessLine:
    """A node as a witness, as it answered at `at`."""

    id: str
    name: str
    at: datetime
    held: str
    root: str
    refused: str
    agrees: bool
    breaks: tuple[BreakLine, ...]
    too_old: bool

    @property
    def in_conflict(self) -> bool:
        """Return whether a person has to decide."""
        return not self.agrees or bool(self.refused)


def lines() -> tuple[WitnessLine, ...]:
    """Return all witnesses. One query."""
    rows = NodeWitness.objects.filter(node__lifecycle=APPROVED).select_related("node").order_by("node")
    return tuple(_line(row) for row in rows)


def facts(node_id: str) -> tuple[tuple[str, str], ...]:
    """Return the facts of one node's page. One query."""
    row = NodeWitness.objects.select_related("node").filter(node_id=node_id).first()
    if row is None:
        return (("Audit log witnessed", "not yet"),)
    line = _line(row)
    found = [("Audit log witnessed", f"{line.held}, asked at {line.at:%Y-%m-%d %H:%M} UTC")]
    if line.refused:
        found.append(("Audit log refused", line.refused))
    found += [("Audit log accepted", f"{one.now} in place of {one.was}, by {one.who}") for one in line.breaks]
    return tuple(found)


def _line(row: NodeWitness) -> WitnessLine:
    view = WitnessView.model_validate(row.view)
    return WitnessLine(
        id=row.node_id,
        name=row.node.name,
        at=row.at,
        held=_words(view.held),
        root=view.held.root if view.held else "",
        refused=_words(view.refused) if view.refused else "",
        agrees=row.agrees,
        breaks=tuple(_break(one) for one in reversed(view.breaks)),
        too_old=not accepted_logs.can_take(row),
    )


def _words(head: AuditHead | None) -> str:
    return f"{head.size} lines from {head.time}" if head else "nothing yet"


def _break(one: AcceptedBreak) -> BreakLine:
    try:
        decision = dict(json.loads(one.line))
    except (ValueError, TypeError):
        decision = {}
    who = f"{decision.get('person', 'unknown')} ({decision.get('role', 'no role')})"
    why = str(decision.get("detail") or "").rpartition("Reason: ")[2]
    return BreakLine(f"{one.was.name}", f"{one.now.name}", one.time, who, why)
