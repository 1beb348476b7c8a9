"""The fleet as a grid of GPUs, node by node: use, free memory, and problems."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_GET

from mirbad.kernel.roles import VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment
from models_app.pages.contexts import models
from models_app.pages.contexts.models import ModelRow
from nodes.models import Gpu, Node
from nodes.pages.contexts import gpus, nodes
from nodes.pages.contexts.gpus import GpuCard, GpuTotals
from nodes.pages.contexts.nodes import NodeCard
from nodes.pages.contexts.scopes import scopes

NODES_SHOWN = 24
_MOST_PAGES = 10_000


@dataclass(frozen=True, slots=True)
class NodeGrid:
    """A node with its cards and the models on it."""

    card: NodeCard
    gpus: tuple[GpuCard, ...]
    totals: GpuTotals
    models: tuple[ModelRow, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page of the fleet; totals are of all nodes that match."""

    nodes: tuple[NodeGrid, ...]
    totals: GpuTotals
    count: int
    older: str
    newer: str


@require_GET
@require_role(VIEWER)
def page(request: HttpRequest) -> HttpResponse:
    """Show the grid; ``?node=`` is one node, ``?q=`` a part of a name."""
    node_id, words = request.GET.get("node", "")[:40], request.GET.get("q", "")[:100].strip()
    sent = request.GET.get("page", "")
    number = int(sent) if sent.isascii() and sent.isdigit() and 0 < int(sent[:6]) < _MOST_PAGES else 1
    context: dict[str, Any] = {
        "dashboard": read(node_id, words, number),
        "node_id": node_id,
        "words": words,
        "scopes": scopes(),
        "path": reverse("dashboard"),
    }
    return page_or_fragment(request, "dashboard.html", "_dashboard.html", context)


@require_GET
@require_role(VIEWER)
def monitoring(request: HttpRequest) -> HttpResponse:
    """Redirect the former monitoring page to the overview."""
    node_id = request.GET.get("node", "")[:40]
    home = reverse("home")
    return redirect(f"{home}?{urlencode({'node': node_id})}" if node_id else home)


def read(node_id: str, words: str, number: int) -> Dashboard:
    """Return one page, in a number of queries that does not grow with the fleet."""
    wanted = Node.objects.not_revoked()
    if node_id:
        wanted = wanted.filter(pk=node_id)
    if words:
        wanted = wanted.filter(Q(pk__icontains=words) | Q(display_name__icontains=words))
    count = wanted.count()
    begin = (number - 1) * NODES_SHOWN
    shown = list(wanted.order_by("id").prefetch_related("gpus", "conditions")[begin : begin + NODES_SHOWN])
    placed: dict[str, list[ModelRow]] = {node.pk: [] for node in shown}
    for model in models.models() if shown else ():
        for place, _ in model.nodes:
            if place in placed:
                placed[place].append(models.on_node(model, place))
    of = Gpu.objects.filter(node__in=wanted, present=True).only("seen", "memory_bytes", "present")
    narrowed = {name: value for name, value in (("node", node_id), ("q", words)) if value}
    return Dashboard(
        nodes=tuple(
            NodeGrid(nodes.card(node), gpus.cards(node), gpus.totals(node.gpus.all()), tuple(placed[node.pk]))
            for node in shown
        ),
        totals=gpus.totals(of.iterator()),
        count=count,
        older=_query(narrowed, number + 1) if begin + NODES_SHOWN < count else "",
        newer=_query(narrowed, number - 1) if number > 1 else "",
    )


def _query(narrowed: dict[str, str], number: int) -> str:
    return "?" + urlencode({**narrowed, "page": number})
