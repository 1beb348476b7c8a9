"""Views of the nodes pages: look up, parse, one call, respond."""

from collections.abc import Callable
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from audit import log as audit_log
from mirbad.accounts import actors
from mirbad.accounts.permissions import require_reauthentication
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import MirbadError, NotFound
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import is_fragment, page_or_fragment, perform, private
from nodes import queries, registry
from nodes.enrollment import tokens
from nodes.models import JoinToken, Node
from nodes.pages import contexts, gpus
from nodes.pages.forms import AddNodeForm, RekeyForm
from nodes.pages.settings_form import NodeSettingsForm
from nodes.states import PENDING

_TAB_NAMES = tuple(name for name, _ in contexts.TABS)


def _node(node_id: str) -> Node:
    try:
        return queries.get(node_id)
    except NotFound as error:
        raise Http404(error.detail) from error


def _page(node_id: str) -> str:
    return reverse("nodes:detail", args=[node_id])


def _act(
    request: HttpRequest,
    action: str,
    node_id: str,
    call: Callable[[Actor], Any],
    words: str,
    *,
    to: str,
    go: bool = False,
) -> HttpResponse:
    """One audited action on one node, and its answer."""
    actor = actors.of(request)

    def run() -> None:
        with audit_log.refusals_recorded(action, actor, node_id=node_id):
            call(actor)

    return perform(request, run, words, to=to, go=go)


@require_GET
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """All nodes, and the machines that were asked to join."""
    revoked = request.GET.get("revoked") == "1"
    context = {
        "nodes": contexts.fleet(include_revoked=revoked),
        "tokens": contexts.open_tokens(),
        "include_revoked": revoked,
        # Drawn by the app above, by URL name: one request for all rows.
        "node_cells_url": reverse("models:node-cells"),
        "operation_cells_url": reverse("jobs:node-cells"),
    }
    return page_or_fragment(request, "nodes/list.html", "nodes/_list.html", context)


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def add(request: HttpRequest) -> HttpResponse:
    """Make a join command. The token is shown in this one answer and never again."""
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
                    request_host=request.get_host(),
                )
            context["progress"] = contexts.join_progress(node_id)
        except MirbadError as error:
            context["error"] = error
    response = page_or_fragment(request, "nodes/add.html", "nodes/_add.html", context)
    response["Cache-Control"] = "no-store"
    return response


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def rekey(request: HttpRequest, node_id: str) -> HttpResponse:
    """Make a command by which a known node gets a new key. The token is shown in this one answer and never again."""
    node = _node(node_id)
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
                    node_id, actor=actor, purpose=JoinToken.REKEY, ttl=form.ttl, request_host=request.get_host()
                )
            context["progress"] = contexts.join_progress(node_id)
        except MirbadError as error:
            context["error"] = error
    response = page_or_fragment(request, "nodes/rekey.html", "nodes/_rekey.html", context)
    response["Cache-Control"] = "no-store"
    return response


@require_GET
@require_role(OPERATOR)
def join_progress(request: HttpRequest, node_id: str) -> HttpResponse:
    """How far the machine has come; part of the page that made the token."""
    if not is_fragment(request):
        return redirect("nodes:list")
    progress = contexts.join_progress(node_id)
    return private(render(request, "nodes/_progress.html", {"progress": progress}))


@require_POST
@require_role(OPERATOR)
def withdraw(request: HttpRequest, node_id: str) -> HttpResponse:
    """Expire the unused tokens of a node."""
    return _act(
        request,
        "node.join-token",
        node_id,
        lambda actor: tokens.withdraw(node_id, actor),
        f"The join token of {node_id} is withdrawn.",
        to=reverse("nodes:list"),
    )


@require_GET
@require_role(VIEWER)
def detail(request: HttpRequest, node_id: str, tab: str = "overview") -> HttpResponse:
    """One node, in tabs."""
    if tab not in _TAB_NAMES:
        raise Http404(tab)
    node = _node(node_id)
    context = {
        "node": contexts.detail(node),
        "tabs": contexts.TABS,
        "tab": tab,
        "models_url": reverse("models:of-node", args=[node_id]),
        "operations_url": reverse("jobs:of-node", args=[node_id]),
        "lines": contexts.audit_lines(node_id, 5) if tab == "overview" else None,
    }
    if tab == "gpus":
        context["gpus"] = gpus.cards(node)
        context["totals"] = gpus.totals(node.gpus.all())
        context["history_url"] = reverse("nodes:history", args=[node_id])
    if tab == "commands":
        context["lines"] = contexts.audit_lines(node_id)
    if tab == "settings":
        context["form"] = NodeSettingsForm.of(node)
    return page_or_fragment(request, "nodes/detail.html", "nodes/_detail.html", context)


@require_POST
@require_role(OPERATOR)
def save_settings(request: HttpRequest, node_id: str) -> HttpResponse:
    """Save what was changed on the settings tab."""
    node = _node(node_id)
    form = NodeSettingsForm.of(node, request.POST)
    if form.is_valid():
        to = reverse("nodes:tab", args=[node_id, "settings"])
        patch = form.patch()
        return _act(
            request,
            "node.update",
            node_id,
            lambda actor: registry.update(node_id, patch, actor) if patch else None,
            "Settings saved.",
            to=to,
            go=True,
        )
    return private(render(request, "nodes/_settings.html", {"form": form, "node": contexts.detail(node)}))


@require_POST
@require_role(OPERATOR)
def approve(request: HttpRequest, node_id: str) -> HttpResponse:
    """Approve the key that the person saw."""
    spki = request.POST.get("expected_spki", "")
    return _act(
        request,
        "node.approve",
        node_id,
        lambda actor: registry.approve(node_id, spki, actor),
        f"{node_id} is approved. It comes online within seconds.",
        to=_page(node_id),
    )


@require_POST
@require_role(OPERATOR)
def reject(request: HttpRequest, node_id: str) -> HttpResponse:
    """Delete an enrollment request; the id can be used again."""
    return _act(
        request,
        "node.reject",
        node_id,
        lambda actor: registry.reject(node_id, actor),
        f"{node_id} is rejected. Its key and its tokens are gone.",
        to=reverse("nodes:list"),
        go=request.POST.get("stay") != "1",
    )


@require_POST
@require_role(OPERATOR)
def drain(request: HttpRequest, node_id: str) -> HttpResponse:
    """No new starts there."""
    words = f"{node_id} is draining: it takes no new starts."
    return _act(request, "node.drain", node_id, lambda actor: registry.drain(node_id, actor), words, to=_page(node_id))


@require_POST
@require_role(OPERATOR)
def undrain(request: HttpRequest, node_id: str) -> HttpResponse:
    """Starts are allowed again."""
    words = f"{node_id} takes new starts again."
    return _act(
        request, "node.undrain", node_id, lambda actor: registry.undrain(node_id, actor), words, to=_page(node_id)
    )
