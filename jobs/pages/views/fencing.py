"""Views of the fencing banner, of a takeover, of its continuation for one node, and of a stand-down."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from jobs.models import Operation
from jobs.pages.contexts.fencing import read_banner, waiting
from jobs.requests import stand_down as standing_down
from jobs.requests import takeover
from mirbad.accounts.actions import act
from mirbad.kernel.roles import OPERATOR, OWNER, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import is_fragment, page_or_fragment, private
from nodes import queries as node_queries


@require_GET
@require_role(VIEWER)
def banner(request: HttpRequest) -> HttpResponse:
    """Show the banner; the part that pages reload."""
    if not is_fragment(request):
        return redirect("home")
    return private(render(request, "jobs/_fencing.html", {"fencing": read_banner()}))


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def take_over(request: HttpRequest) -> HttpResponse:
    """Ask for the phrase, and take over."""
    if request.method == "POST":
        confirm = request.POST.get("confirm", "")
        return act(
            request,
            "fencing.takeover",
            lambda actor: takeover.request(confirm, actor),
            "Takeover started. Nodes that answer obey this master within seconds.",
            to=reverse("home"),
            then=_detail,
            reauthenticate=True,
        )
    context = {"phrase": takeover.PHRASE, "url": reverse("jobs:takeover"), "dialog": is_fragment(request)}
    return page_or_fragment(request, "jobs/fencing.html", "jobs/_takeover_form.html", context)


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def resume(request: HttpRequest, node_id: str) -> HttpResponse:
    """Ask for the node's id, and continue the takeover for it."""
    if request.method == "POST":
        sent = request.POST
        epoch = sent.get("agent_epoch", "")
        return act(
            request,
            "fencing.continue",
            lambda actor: takeover.resume(
                node_id,
                sent.get("takeover_id", ""),
                int(epoch) if epoch.isascii() and epoch.isdigit() else 0,
                sent.get("confirm", ""),
                actor,
            ),
            f"Continuing the takeover for {node_id}.",
            to=reverse("home"),
            then=_detail,
            node_id=node_id,
            reauthenticate=True,
        )
    node = next((node for node in node_queries.waiting_for_continuation() if node.pk == node_id), None)
    if node is None:
        raise Http404(node_id)
    context = {
        "waiting": waiting(node),
        "phrase": node_id,
        "url": reverse("jobs:takeover-continue", args=[node_id]),
        "dialog": is_fragment(request),
    }
    return page_or_fragment(request, "jobs/fencing.html", "jobs/_takeover_form.html", context)


@require_http_methods(["GET", "POST"])
@require_role(OWNER)
def stand_down(request: HttpRequest) -> HttpResponse:
    """Ask for the phrase, and have this master stand down."""
    if request.method == "POST":
        confirm = request.POST.get("confirm", "")
        return act(
            request,
            standing_down.ACTION,
            lambda actor: standing_down.request(confirm, actor),
            "This master stands down: it commands no node.",
            to=reverse("home"),
            reauthenticate=True,
        )
    context = {"phrase": standing_down.PHRASE, "url": reverse("jobs:stand-down"), "dialog": is_fragment(request)}
    return page_or_fragment(request, "jobs/stand_down.html", "jobs/_stand_down_form.html", context)


def _detail(operation: Operation) -> str:
    return reverse("jobs:detail", args=[operation.pk])
