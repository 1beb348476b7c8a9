"""The nodes as witnesses of the audit log, on the audit page, and the decision that they take the present log."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from agent.wire.witness import ACCEPTING
from mirbad.accounts.actions import act
from mirbad.kernel.roles import OWNER, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import is_fragment, page_or_fragment, private
from nodes import accepted_logs
from nodes.pages.contexts import witnesses as contexts


@require_GET
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """Show what each node holds of the log; the part of the audit page."""
    if not is_fragment(request):
        return redirect("audit:list")
    lines = contexts.lines()
    context = {"witnesses": lines, "in_conflict": any(line.in_conflict for line in lines)}
    return private(render(request, "nodes/_witnesses.html", context))


@require_http_methods(["GET", "POST"])
@require_role(OWNER)
def accept(request: HttpRequest) -> HttpResponse:
    """Ask for the reason and the phrase, and have the nodes in conflict take the present log."""
    if request.method == "POST":
        sent = request.POST
        return act(
            request,
            ACCEPTING,
            lambda actor: accepted_logs.accept(sent.get("reason", ""), sent.get("confirm", ""), actor),
            "Decided. The nodes take the log within minutes, and keep the head that they leave.",
            to=reverse("audit:list"),
            reauthenticate=True,
            go=True,
        )
    context = {
        "conflicts": [line for line in contexts.lines() if line.in_conflict],
        "phrase": accepted_logs.PHRASE,
        "longest": accepted_logs.LONGEST_REASON,
    }
    return page_or_fragment(request, "nodes/witnesses_accept.html", "nodes/_witnesses_accept.html", context)
