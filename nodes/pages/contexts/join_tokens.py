"""View-models of join tokens: the progress of one machine, and the tokens that are still open."""

from dataclasses import dataclass
from datetime import datetime

from mirbad.kernel import clock
from nodes.models import JoinToken, Node
from nodes.pages.contexts.pending import Pending, pending
from nodes.states import APPROVED, REVOKED


@dataclass(frozen=True, slots=True)
class JoinProgress:
    """The progress of a machine with its token: waiting, pending, joined, rekeyed, expired or none."""

    node_id: str
    step: str
    expires_at: datetime | None = None
    pending: Pending | None = None
    rekey: bool = False
    spki: str = ""


def progress(node_id: str) -> JoinProgress:
    """Return the progress from the token to the approved node, from the rows."""
    now = clock.now()
    node = Node.objects.prefetch_related("pins").filter(pk=node_id).exclude(lifecycle=REVOKED).first()
    token = JoinToken.objects.filter(node_id_text=node_id).order_by("-created_at").first()
    waiting = token is not None and token.used_at is None and token.expires_at > now
    if token is not None and node is not None and token.purpose == JoinToken.REKEY:
        return _rekey_progress(node, token, waiting=waiting)
    if node is not None and node.lifecycle == APPROVED:
        return JoinProgress(node_id, "joined")
    if node is not None:
        return JoinProgress(node_id, "pending", None, pending(node))
    if token is None:
        return JoinProgress(node_id, "none")
    return JoinProgress(node_id, "waiting" if waiting else "expired", token.expires_at)


def _rekey_progress(node: Node, token: JoinToken, *, waiting: bool) -> JoinProgress:
    if token.used_at is None:
        return JoinProgress(node.pk, "waiting" if waiting else "expired", token.expires_at, rekey=True)
    if node.lifecycle == APPROVED:
        return JoinProgress(node.pk, "rekeyed", rekey=True, spki=token.used_by_spki)
    return JoinProgress(node.pk, "pending", None, pending(node), rekey=True)


@dataclass(frozen=True, slots=True)
class OpenToken:
    """A token whose machine has not enrolled yet."""

    node_id: str
    display_name: str
    purpose: str
    expires_at: datetime


def open_tokens() -> tuple[OpenToken, ...]:
    """Return the valid tokens, for the list of nodes. One query."""
    rows = JoinToken.objects.filter(used_at=None, expires_at__gt=clock.now()).exclude(purpose=JoinToken.BOOTSTRAP)
    return tuple(OpenToken(row.node_id_text, row.display_name, row.purpose, row.expires_at) for row in rows[:50])
