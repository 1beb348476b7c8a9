"""The banner of every page while this master is fenced, or a node waits for a decision."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from jobs import queries
from jobs.kinds.takeover import CONTINUE, NAME
from jobs.loops import configured_takeover
from jobs.pages.contexts.rows import OperationRow, row
from mirbad.kernel import recovery_mode
from mirbad.kernel.conf import settings
from nodes import queries as node_queries
from nodes.models import MasterIdentity, Node


@dataclass(frozen=True, slots=True)
class WaitingNode:
    """A node that obeys another master since a takeover."""

    id: str
    name: str
    epoch: int
    takeover_id: str


@dataclass(frozen=True, slots=True)
class FencingBanner:
    """The banner at the top of every page; empty while this master commands and nothing waits."""

    reason: str
    stands_down: bool
    option: str
    waiting: tuple[WaitingNode, ...]
    operation: OperationRow | None
    recovery_option: str = ""
    by_itself: bool = False
    """True while a flag file requests a takeover, which then starts without anybody."""

    @property
    def shown(self) -> bool:
        """True when there is anything to show."""
        return bool(self.reason or self.option or self.waiting or self.operation or self.recovery_option)


def context(request: HttpRequest) -> dict[str, Any]:
    """Return ``fencing``: the banner, read only where a page renders it."""
    return {"fencing": SimpleLazyObject(read_banner)}


def read_banner() -> FencingBanner:
    """Return the banner. Three queries, however many nodes."""
    identity = MasterIdentity.objects.only("fenced_reason", "stood_down_at").first()
    opened = queries.unfinished().filter(kind__in=(NAME, CONTINUE)).first()
    return FencingBanner(
        reason=identity.fenced_reason if identity else "",
        stands_down=identity is not None and identity.stood_down_at is not None,
        option=_option_text(),
        waiting=tuple(waiting(node) for node in node_queries.waiting_for_continuation()),
        operation=row(opened) if opened else None,
        by_itself=opened is None and configured_takeover.has_flag(),
        recovery_option=recovery_mode.left_set_text(settings()) if recovery_mode.is_left_set(settings()) else "",
    )


def _option_text() -> str:
    chosen = settings()
    if not chosen.fencing_takeover:
        return ""
    if chosen.fencing_takeover_id:
        return (
            "MIRBAD_FENCING_TAKEOVER is still set. Remove it and MIRBAD_FENCING_TAKEOVER_ID once its takeover is done."
        )
    return "MIRBAD_FENCING_TAKEOVER is set without an id: this master takes over again at every start. Remove it."


def waiting(node: Node) -> WaitingNode:
    """Return the values of a node that waits for a continuation."""
    return WaitingNode(node.pk, node.name, node.held_epoch or 0, node.takeover_id)
