"""The list of nodes, the page of one node, and its actions."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from mirbad.accounts.actions import act
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment, private
from nodes import queries, registry
from nodes.pages.contexts import gpus, join_tokens
from nodes.pages.contexts import nodes as contexts
from nodes.pages.forms.settings import NodeSettingsForm

_TAB_NAMES = tuple(name for name, _ in contexts.TABS)


def _page(node_id: str) -> str:
    return reverse("nodes:detail", args=[node_id])


@require_GET
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """Show all nodes, and the open join tokens."""
    revoked = request.GET.get("revoked") == "1"
    context = {
        "nodes": contexts.fleet(include_revoked=revoked),
        "tokens": join_tokens.open_tokens(),
        "include_revoked": revoked,
        # Rendered by the apps above, by URL name: one request for all rows.
        "node_cells_url": reverse("models:node-cells"),
        "operation_cells_url": reverse("jobs:node-cells"),
    }
    return page_or_fragment(request, "nodes/list.html", "nodes/_list.html", context)


@require_GET
@require_role(VIEWER)
def detail(request: HttpRequest, node_id: str, tab: str = "overview") -> HttpResponse:
    """Show one node, in tabs."""
    if tab not in _TAB_NAMES:
        raise Http404(tab)
    node = queries.get(node_id)
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
    """Save the changed fields of the settings tab."""
    node = queries.get(node_id)
    form = NodeSettingsForm.of(node, request.POST)
    if form.is_valid():
        to = reverse("nodes:tab", args=[node_id, "settings"])
        patch = form.patch()
        return act(
            request,
            "node.update",
            lambda actor: registry.update(node_id, patch, actor) if patch else None,
            "Settings saved.",
            node_id=node_id,
            to=to,
            go=True,
        )
    return private(render(request, "nodes/_settings.html", {"form": form, "node": contexts.detail(node)}))


@require_POST
@require_role(OPERATOR)
def approve(request: HttpRequest, node_id: str) -> HttpResponse:
    """Approve the key that the person compared."""
    spki = request.POST.get("expected_spki", "")
    return act(
        request,
        "node.approve",
        lambda actor: registry.approve(node_id, spki, actor),
        f"{node_id} is approved. It will be online within seconds.",
        node_id=node_id,
        to=_page(node_id),
    )


@require_POST
@require_role(OPERATOR)
def reject(request: HttpRequest, node_id: str) -> HttpResponse:
    """Delete an enrollment request; the id can be used again."""
    return act(
        request,
        "node.reject",
        lambda actor: registry.reject(node_id, actor),
        f"{node_id} is rejected. Its key and tokens are deleted.",
        node_id=node_id,
        to=reverse("nodes:list"),
        go=request.POST.get("stay") != "1",
    )


@require_POST
@require_role(OPERATOR)
def undrain(request: HttpRequest, node_id: str) -> HttpResponse:
    """Accept new models on the node again."""
    words = f"{node_id} accepts new models again."
    return act(
        request,
        "node.undrain",
        lambda actor: registry.undrain(node_id, actor),
        words,
        to=_page(node_id),
        node_id=node_id,
    )
