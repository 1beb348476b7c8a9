"""Pages of the models: list, detail, log, and the parts of node pages that show models."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from mirbad.accounts.actions import act
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import is_fragment, page_or_fragment, private
from models_app import queries, registry
from models_app.pages.contexts import engine_log, models, orphans


def _page(model_id: str) -> str:
    return reverse("models:detail", args=[model_id])


@require_GET
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """Show all models."""
    return page_or_fragment(request, "models/list.html", "models/_list.html", {"models": models.models()})


@require_GET
@require_role(VIEWER)
def detail(request: HttpRequest, model_id: str) -> HttpResponse:
    """Show one model: desired and observed state."""
    context = {
        "model": models.detail(queries.one_model(model_id)),
        # The app above draws these, by URL name.
        "operations_url": reverse("jobs:of-model", args=[model_id]),
        "timeline_url": reverse("jobs:timeline", args=[model_id]),
        "chat_url": request.build_absolute_uri("/v1/chat/completions"),
    }
    return page_or_fragment(request, "models/detail.html", "models/_state.html", context)


@require_GET
@require_role(VIEWER)
def log(request: HttpRequest, model_id: str) -> HttpResponse:
    """Show the end of the engine's log."""
    model = queries.one_model(model_id)
    if not is_fragment(request):
        return redirect(_page(model_id))
    run = request.GET.get("run", "")
    shown = engine_log.of_model(model, request.GET.get("node", ""), int(run) if run in ("1", "2") else 0)
    return private(render(request, "models/_log.html", {"log": shown}))


@require_GET
@require_role(VIEWER)
def of_node(request: HttpRequest, node_id: str) -> HttpResponse:
    """Show the models of one node, for its page."""
    context = {"models": models.of_node(node_id), "orphans": orphans.on_node(node_id), "node_id": node_id}
    return private(render(request, "models/_of_node.html", context))


@require_GET
@require_role(VIEWER)
def node_cells(request: HttpRequest) -> HttpResponse:
    """Show the models column of the list of nodes, all rows at once."""
    return private(render(request, "models/_node_cells.html", {"cells": models.node_cells()}))


@require_POST
@require_role(OPERATOR)
def delete(request: HttpRequest, model_id: str) -> HttpResponse:
    """Delete a definition that runs nowhere."""
    return act(
        request,
        "model.delete",
        lambda actor: registry.delete(model_id, actor),
        f"{model_id} is deleted. Weights stay on the node.",
        to=reverse("models:list"),
        model_id=model_id,
        go=True,
    )
