"""Pages of the catalog of known models, one node at a time."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from mirbad.accounts.actions import act
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment
from models_app import registry
from models_app.artifacts import catalog
from models_app.pages.views import node_choice


@require_GET
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """Show known models with their state on a node, by its last report."""
    nodes, node = node_choice.chosen(request)
    context = {"nodes": nodes, "node": node, "offers": catalog.offers(node) if node else ()}
    return page_or_fragment(request, "models/catalog.html", "models/_catalog.html", context)


@require_POST
@require_role(OPERATOR)
def make_model(request: HttpRequest, entry_id: str) -> HttpResponse:
    """Create a model of the catalog on a node; its first start downloads the missing files."""
    entry = catalog.find(entry_id)
    _, node = node_choice.chosen(request)
    if entry is None or node is None:
        raise Http404("The catalog has no such model, or the fleet has no node.")
    offer = next(offer for offer in catalog.offers(node) if offer.entry == entry)
    data: dict[str, Any] = {
        "id": entry.id,
        "display_name": entry.name,
        "runtime": entry.runtime.value,
        "delivery": offer.delivery or "container",
        "sources": [
            {
                "kind": "huggingface",
                "folder": entry.folder,
                "file": entry.file,
                "repository": entry.repository,
                "revision": entry.revision,
            }
        ],
        "placement": {"node_id": node.pk, "gpu_uuids": request.POST.getlist("gpu_uuids")},
    }

    return act(
        request,
        "model.create",
        lambda actor: registry.create(registry.parse(data), actor),
        f"{entry.name} is created. Its first start downloads the missing files to {node.pk}.",
        to=reverse("models:list"),
        model_id=entry.id,
        go=True,
    )
