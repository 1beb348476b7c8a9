"""The banner of every page that says when this master may not command, and the pages that act on it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.functional import SimpleLazyObject
from django.views.decorators.http import require_GET, require_http_methods

from audit import log as audit_log
from jobs import queries, takeover
from jobs.kinds.takeover import CONTINUE, NAME
from jobs.models import Operation
from jobs.pages.contexts import OperationRow, row
from mirbad.accounts import actors
from mirbad.accounts.permissions import require_reauthentication
from mirbad.kernel.actor import Actor
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import done, is_fragment, page_or_fragment, private, refused
from nodes import fencing
from nodes import queries as node_queries
from nodes.models import Node


@dataclass(frozen=True, slots=True)
class WaitingNode:
    """A node that obeys another master since a takeover."""

    id: str
    name: str
    epoch: int
    takeover_id: str


@dataclass(frozen=True, slots=True)
class Banner:
    """What stands at the top of every page; empty while this master commands and nothing waits."""

    reason: str
    option: str
    waiting: tuple[WaitingNode, ...]
    operation: OperationRow | None

    @property
    def shown(self) -> bool:
        """Whether there is anything to say."""
        return bool(self.reason or self.option or self.waiting or self.operation)


def context(request: HttpRequest) -> dict[str, Any]:
    """``fencing``: the banner, read only where a page draws it."""
    return {"fencing": SimpleLazyObject(read_banner)}


def read_banner() -> Banner:
    """Three queries, however many nodes."""
    opened = queries.unfinished().filter(kind__in=(NAME, CONTINUE)).first()
    return Banner(
        reason=fencing.fenced_reason(),
        option=_option_words(),
        waiting=tuple(_waiting(node) for node in node_queries.waiting_for_continuation()),
        operation=row(opened) if opened else None,
    )


def _option_words() -> str:
    chosen = settings()
    if not chosen.fencing_takeover:
        return ""
    if chosen.fencing_takeover_id:
        return (
            "MIRBAD_FENCING_TAKEOVER is still set. Remove it and MIRBAD_FENCING_TAKEOVER_ID once its takeover is done."
        )
    return "MIRBAD_FENCING_TAKEOVER is set without an id: this master takes over again at every start. Remove it."


def _waiting(node: Node) -> WaitingNode:
    return WaitingNode(node.pk, node.name, node.held_epoch or 0, node.takeover_id)


@require_GET
@require_role(VIEWER)
def banner(request: HttpRequest) -> HttpResponse:
    """The banner again, when something changed."""
    if not is_fragment(request):
        return redirect("home")
    return private(render(request, "jobs/_fencing.html", {"fencing": read_banner()}))


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def take_over(request: HttpRequest) -> HttpResponse:
    """Ask for the phrase, and take over."""
    if request.method == "POST":
        confirm = request.POST.get("confirm", "")
        return _act(
            request,
            "fencing.takeover",
            lambda actor: takeover.request(confirm, actor),
            "Taking over. Nodes that answer obey this master within seconds.",
        )
    context = {"phrase": takeover.PHRASE, "url": reverse("jobs:takeover"), "dialog": is_fragment(request)}
    return page_or_fragment(request, "jobs/fencing.html", "jobs/_takeover_form.html", context)


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def resume(request: HttpRequest, node_id: str) -> HttpResponse:
    """Ask for the node's id, and continue the takeover for it."""
    if request.method == "POST":
        asked = request.POST
        epoch = asked.get("agent_epoch", "")
        return _act(
            request,
            "fencing.continue",
            lambda actor: takeover.resume(
                node_id,
                asked.get("takeover_id", ""),
                int(epoch) if epoch.isascii() and epoch.isdigit() else 0,
                asked.get("confirm", ""),
                actor,
            ),
            f"Continuing the takeover for {node_id}.",
            node_id=node_id,
        )
    node = next((node for node in node_queries.waiting_for_continuation() if node.pk == node_id), None)
    if node is None:
        raise Http404(node_id)
    context = {
        "waiting": _waiting(node),
        "phrase": node_id,
        "url": reverse("jobs:takeover-continue", args=[node_id]),
        "dialog": is_fragment(request),
    }
    return page_or_fragment(request, "jobs/fencing.html", "jobs/_takeover_form.html", context)


def _act(
    request: HttpRequest, action: str, call: Callable[[Actor], Operation], words: str, *, node_id: str = ""
) -> HttpResponse:
    actor = actors.of(request)
    try:
        with audit_log.refusals_recorded(action, actor, node_id=node_id):
            require_reauthentication(request)
            operation = call(actor)
    except MirbadError as error:
        return refused(request, error, to=reverse("home"))
    return done(request, words, to=reverse("jobs:detail", args=[operation.pk]))
