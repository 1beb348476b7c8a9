"""Pages that create join tokens and show the progress of the join."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from audit import log as audit_log
from mirbad.accounts import actors
from mirbad.accounts.actions import act
from mirbad.accounts.permissions import require_reauthentication
from mirbad.api import origins
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR
from mirbad.web.access import require_role
from mirbad.web.fragments import is_fragment, page_or_fragment, private
from nodes import queries
from nodes.enrollment import tokens
from nodes.models import JoinToken
from nodes.pages.contexts import join_tokens as contexts
from nodes.pages.forms.join_tokens import AddNodeForm, RekeyForm
from nodes.states import PENDING


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def add(request: HttpRequest) -> HttpResponse:
    """Create a join command. The token is shown in this one response and never again."""
    form = AddNodeForm(request.POST or None)
    context: dict[str, object] = {"form": form}
    if request.method == "POST" and form.is_valid():
        node_id = form.cleaned_data["node_id"]
        actor = actors.of(request)
        try:
            with audit_log.refusals_recorded("node.join-token", actor, node_id=node_id):
                require_reauthentication(request)
                context["join"] = tokens.create(
                    node_id,
                    actor=actor,
                    display_name=form.cleaned_data["display_name"],
                    ttl=form.ttl,
                    browser=origins.browser(request),
                )
            context["progress"] = contexts.progress(node_id)
        except MirbadError as error:
            context["error"] = error
    response = page_or_fragment(request, "nodes/add.html", "nodes/_add.html", context)
    response["Cache-Control"] = "no-store"
    return response


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def rekey(request: HttpRequest, node_id: str) -> HttpResponse:
    """Create a command that gives a known node a new key. The token is shown in this one response and never again."""
    node = queries.get(node_id)
    form = RekeyForm(request.POST or None)
    context: dict[str, object] = {
        "form": form,
        "node_id": node_id,
        "name": node.name,
        "uid": node.uid,
        "own": node.is_bootstrap,
        "pending": node.lifecycle == PENDING,
    }
    if request.method == "POST" and form.is_valid():
        actor = actors.of(request)
        try:
            with audit_log.refusals_recorded("node.join-token", actor, node_id=node_id):
                require_reauthentication(request)
                context["join"] = tokens.create(
                    node_id, actor=actor, purpose=JoinToken.REKEY, ttl=form.ttl, browser=origins.browser(request)
                )
            context["progress"] = contexts.progress(node_id)
        except MirbadError as error:
            context["error"] = error
    response = page_or_fragment(request, "nodes/rekey.html", "nodes/_rekey.html", context)
    response["Cache-Control"] = "no-store"
    return response


@require_GET
@require_role(OPERATOR)
def progress(request: HttpRequest, node_id: str) -> HttpResponse:
    """Show the progress of the machine; a fragment of the page that created the token."""
    if not is_fragment(request):
        return redirect("nodes:list")
    progress = contexts.progress(node_id)
    return private(render(request, "nodes/_progress.html", {"progress": progress}))


@require_POST
@require_role(OPERATOR)
def withdraw(request: HttpRequest, node_id: str) -> HttpResponse:
    """Revoke the unused tokens of a node."""
    return act(
        request,
        "node.join-token",
        lambda actor: tokens.withdraw(node_id, actor),
        f"The join token of {node_id} is revoked.",
        node_id=node_id,
        to=reverse("nodes:list"),
    )
