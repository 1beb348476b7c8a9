"""Pages of model folders and of the catalog, one node at a time."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from agent.wire.capability import ModelFolder
from audit import log as audit_log
from mirbad.accounts import actors
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web import parts
from mirbad.web.access import require_role
from mirbad.web.fragments import done, page_or_fragment, perform, refused
from mirbad.web.parts import Bar
from models_app import registry
from models_app.artifacts import catalog, folders
from nodes import queries
from nodes.models import Node


@dataclass(frozen=True, slots=True)
class FolderRow:
    """A model folder at a glance."""

    name: str
    size: str
    files: str
    repository: str
    commit: str
    missing: tuple[str, ...]
    used_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoldersShown:
    """The folders of a node; `problem` says why they are the last reported ones."""

    rows: tuple[FolderRow, ...]
    disk: Bar | None
    problem: str


def _chosen(request: HttpRequest) -> tuple[list[Node], Node | None]:
    """The nodes to choose from, and the one that is shown."""
    nodes = list(Node.objects.approved().order_by("id"))
    wanted = request.GET.get("node") or request.POST.get("node", "")
    if not wanted:
        return nodes, nodes[0] if nodes else None
    found = next((node for node in nodes if node.pk == wanted), None)
    if found is None:
        raise Http404(f"There is no node {wanted}.")
    return nodes, found


def _shown(node: Node) -> FoldersShown:
    try:
        found = folders.listed(node.pk)
    except MirbadError as error:
        known = queries.capabilities(node)
        used = folders.users_of(node.pk)
        rows = tuple(_row(item, used) for item in known.folders) if known else ()
        return FoldersShown(rows, None, f"{error.detail} These are the folders that it reported last.")
    rows = tuple(_row(item, found.used_by) for item in found.listed.folders)
    free, total = found.listed.free_bytes, found.listed.total_bytes
    taken = total - free if total is not None and free is not None else None
    return FoldersShown(rows, parts.memory_bar("Disk of the models root", taken, total), "")


def _row(folder: ModelFolder, used: dict[str, tuple[str, ...]]) -> FolderRow:
    return FolderRow(
        name=folder.name,
        size=f"over {parts.size(folder.total_bytes)}" if folder.truncated else parts.size(folder.total_bytes),
        files=("over " if folder.truncated else "") + parts.plural(len(folder.files), "file"),
        repository=folder.repository or "",
        commit=folder.commit or "",
        missing=folder.missing,
        used_by=used.get(folder.name, ()),
    )


@require_GET
@require_role(VIEWER)
def folders_page(request: HttpRequest) -> HttpResponse:
    """What lies under the models root of a node."""
    nodes, node = _chosen(request)
    context = {"nodes": nodes, "node": node, "folders": _shown(node) if node else None}
    return page_or_fragment(request, "models/folders.html", "models/_folders.html", context)


@require_POST
@require_role(OPERATOR)
def delete_folder(request: HttpRequest, node_id: str, folder: str) -> HttpResponse:
    """Remove a folder from its node."""
    actor, to = actors.of(request), f"{reverse('models:folders')}?{urlencode({'node': node_id})}"
    try:
        gone = folders.remove(node_id, folder, actor)
    except MirbadError as error:
        return refused(request, error, to=to)
    return done(request, f"{folder} is gone; {parts.size(gone.freed_bytes)} are free again.", to=to)


@require_GET
@require_role(VIEWER)
def catalog_page(request: HttpRequest) -> HttpResponse:
    """Known models, as the node stands to them by its last report."""
    nodes, node = _chosen(request)
    context = {"nodes": nodes, "node": node, "offers": catalog.offers(node) if node else ()}
    return page_or_fragment(request, "models/catalog.html", "models/_catalog.html", context)


@require_POST
@require_role(OPERATOR)
def make_model(request: HttpRequest, entry_id: str) -> HttpResponse:
    """Define a model of the catalog on a node; its first start downloads what is missing."""
    entry = catalog.find(entry_id)
    _, node = _chosen(request)
    if entry is None or node is None:
        raise Http404("There is no such model in the catalog, or no node for it.")
    offer = next(offer for offer in catalog.offers(node) if offer.entry == entry)
    actor = actors.of(request)
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

    def run() -> None:
        with audit_log.refusals_recorded("model.create", actor, model_id=entry.id):
            registry.create(registry.parse(data), actor)

    words = f"{entry.name} is defined. Its first start downloads what {node.pk} lacks."
    return perform(request, run, words, to=reverse("models:list"), go=True)
