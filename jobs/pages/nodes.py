"""What changes who a node is, as actions and one page; and what happens to nodes now, as parts of their pages."""

from collections.abc import Callable

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from audit import log as audit_log
from jobs import evacuation, identity, offload
from jobs.models import Operation
from jobs.pages import contexts
from mirbad.accounts import actors
from mirbad.accounts.permissions import require_reauthentication
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import done, page_or_fragment, perform, private, refused
from models_app.models import Placement
from nodes import registry
from nodes.models import Node
from nodes.states import REVOKED


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def revoke(request: HttpRequest, node_id: str) -> HttpResponse:
    """Ask for the node's id and what is to become of its models, and revoke it."""
    if request.method == "POST":
        confirm, unplace = request.POST.get("confirm", ""), request.POST.get("unplace_models") == "on"
        return _act(
            request,
            "node.revoke",
            node_id,
            lambda actor: identity.revoke(node_id, confirm, actor, unplace_models=unplace),
            f"{node_id} is being revoked.",
            go=True,
        )
    node = Node.objects.filter(pk=node_id).exclude(lifecycle=REVOKED).first()
    if node is None:
        raise Http404(node_id)
    models = Placement.objects.filter(node_id_text=node_id).order_by("model_id").values_list("model_id", flat=True)
    context = {"node": node, "models": list(models)}
    return page_or_fragment(request, "jobs/revoke.html", "jobs/_revoke_form.html", context)


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def drain(request: HttpRequest, node_id: str) -> HttpResponse:
    """Ask what is to become of the node's models, and drain it."""
    here = reverse("nodes:detail", args=[node_id])
    if request.method == "POST":
        actor = actors.of(request)
        if request.POST.get("evacuate") == "on":
            words = f"{node_id} is draining; its models are moved off."
            return perform(request, lambda: evacuation.request(node_id, actor), words, to=here, go=True)
        words = f"{node_id} is draining: it takes no new starts."
        return perform(request, lambda: _drain(node_id, actor), words, to=here, go=True)
    node = Node.objects.filter(pk=node_id).exclude(lifecycle=REVOKED).first()
    if node is None:
        raise Http404(node_id)
    context = {"node": node, "outlook": offload.outlook(node_id)}
    return page_or_fragment(request, "jobs/drain.html", "jobs/_drain_form.html", context)


def _drain(node_id: str, actor: Actor) -> None:
    with audit_log.refusals_recorded("node.drain", actor, node_id=node_id):
        registry.drain(node_id, actor)


@require_POST
@require_role(OPERATOR)
def rotate(request: HttpRequest, node_id: str) -> HttpResponse:
    """Give the node another key and certificate."""
    return _act(
        request,
        "node.rotate-cert",
        node_id,
        lambda actor: identity.rotate(node_id, actor),
        f"The certificate of {node_id} is being rotated.",
        sure=False,
    )


@require_POST
@require_role(OPERATOR)
def readmit(request: HttpRequest, node_id: str) -> HttpResponse:
    """Let a node whose certificate has expired come back once, by its key."""
    return _act(
        request,
        "node.rotate-cert",
        node_id,
        lambda actor: identity.readmit(node_id, actor),
        f"{node_id} may come back within a day by the key that the master knows.",
    )


@require_GET
@require_role(VIEWER)
def of_node(request: HttpRequest, node_id: str) -> HttpResponse:
    """What happens to one node now; a part of its page."""
    return private(render(request, "jobs/_of_node.html", {"operations": contexts.of_node(node_id)}))


@require_GET
@require_role(VIEWER)
def history(request: HttpRequest, node_id: str) -> HttpResponse:
    """What happens and happened to one node; the Operations tab of its page."""
    return private(render(request, "jobs/_node_history.html", {"history": contexts.history_of_node(node_id)}))


@require_GET
@require_role(VIEWER)
def node_cells(request: HttpRequest) -> HttpResponse:
    """The column of open operations in the list of nodes, all rows at once."""
    return private(render(request, "jobs/_node_cells.html", {"cells": contexts.node_cells()}))


def _act(
    request: HttpRequest,
    action: str,
    node_id: str,
    call: Callable[[Actor], Operation],
    words: str,
    *,
    sure: bool = True,
    go: bool = False,
) -> HttpResponse:
    actor = actors.of(request)
    try:
        with audit_log.refusals_recorded(action, actor, node_id=node_id):
            if sure:
                require_reauthentication(request)
            operation = call(actor)
    except MirbadError as error:
        return refused(request, error, to=reverse("nodes:detail", args=[node_id]))
    return done(request, words, to=reverse("jobs:detail", args=[operation.pk]), go=go)
