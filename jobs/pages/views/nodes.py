"""Actions on the identity and the work of a node; and the operations on nodes, as parts of their pages."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from jobs.models import Operation
from jobs.pages.contexts import operations as contexts
from jobs.requests import evacuation, identity
from jobs.steps import offload
from mirbad.accounts import actors
from mirbad.accounts.actions import act
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment, perform, private
from models_app.models import Placement
from nodes import registry
from nodes.models import Node
from nodes.states import REVOKED


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def revoke(request: HttpRequest, node_id: str) -> HttpResponse:
    """Ask for the node's id and the decision about its models, and revoke the node."""
    if request.method == "POST":
        confirm, unplace = request.POST.get("confirm", ""), request.POST.get("unplace_models") == "on"
        return act(
            request,
            "node.revoke",
            lambda actor: identity.revoke(node_id, confirm, actor, unplace_models=unplace),
            f"{node_id} is being revoked.",
            to=_page(node_id),
            then=_detail,
            node_id=node_id,
            reauthenticate=True,
            go=True,
        )
    models = Placement.objects.filter(node_id_text=node_id).order_by("model_id").values_list("model_id", flat=True)
    context = {"node": _known(node_id), "models": list(models)}
    return page_or_fragment(request, "jobs/revoke.html", "jobs/_revoke_form.html", context)


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def drain(request: HttpRequest, node_id: str) -> HttpResponse:
    """Ask for the decision about the node's models, and drain the node."""
    if request.method == "POST":
        if request.POST.get("evacuate") == "on":
            actor, text = actors.of(request), f"{node_id} is draining; its models are moving off."
            return perform(request, lambda: evacuation.request(node_id, actor), text, to=_page(node_id), go=True)
        return act(
            request,
            "node.drain",
            lambda actor: registry.drain(node_id, actor),
            f"{node_id} is draining: no new models start there.",
            to=_page(node_id),
            node_id=node_id,
            go=True,
        )
    context = {"node": _known(node_id), "outlook": offload.outlook(node_id)}
    return page_or_fragment(request, "jobs/drain.html", "jobs/_drain_form.html", context)


@require_POST
@require_role(OPERATOR)
def rotate(request: HttpRequest, node_id: str) -> HttpResponse:
    """Rotate the node's certificate."""
    return act(
        request,
        "node.rotate-cert",
        lambda actor: identity.rotate(node_id, actor),
        f"The certificate of {node_id} is being rotated.",
        to=_page(node_id),
        then=_detail,
        node_id=node_id,
    )


@require_POST
@require_role(OPERATOR)
def readmit(request: HttpRequest, node_id: str) -> HttpResponse:
    """Allow a node with an expired certificate to return once, by its key."""
    return act(
        request,
        "node.rotate-cert",
        lambda actor: identity.readmit(node_id, actor),
        f"{node_id} may return within a day, by the key that the master knows.",
        to=_page(node_id),
        then=_detail,
        node_id=node_id,
        reauthenticate=True,
    )


@require_GET
@require_role(VIEWER)
def of_node(request: HttpRequest, node_id: str) -> HttpResponse:
    """Show the open operations of one node; a part of its page."""
    return private(render(request, "jobs/_of_node.html", {"operations": contexts.of_node(node_id)}))


@require_GET
@require_role(VIEWER)
def history(request: HttpRequest, node_id: str) -> HttpResponse:
    """Show the operations of one node; the Operations tab of its page."""
    return private(render(request, "jobs/_node_history.html", {"history": contexts.history_of_node(node_id)}))


@require_GET
@require_role(VIEWER)
def node_cells(request: HttpRequest) -> HttpResponse:
    """Show the column of open operations in the list of nodes, all rows at once."""
    return private(render(request, "jobs/_node_cells.html", {"cells": contexts.node_cells()}))


def _known(node_id: str) -> Node:
    node = Node.objects.filter(pk=node_id).exclude(lifecycle=REVOKED).first()
    if node is None:
        raise Http404(node_id)
    return node


def _page(node_id: str) -> str:
    return reverse("nodes:detail", args=[node_id])


def _detail(operation: Operation) -> str:
    return reverse("jobs:detail", args=[operation.pk])
