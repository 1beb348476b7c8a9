"""Pages of the model folders, one node at a time."""

from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from mirbad.accounts import actors
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web import parts
from mirbad.web.access import require_role
from mirbad.web.fragments import done, page_or_fragment, refused
from models_app.artifacts import folders
from models_app.pages.contexts import folders as contexts
from models_app.pages.views import node_choice


@require_GET
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """Show the folders below the models root of a node."""
    nodes, node = node_choice.chosen(request)
    context = {"nodes": nodes, "node": node, "folders": contexts.of_node(node) if node else None}
    return page_or_fragment(request, "models/folders.html", "models/_folders.html", context)


@require_POST
@require_role(OPERATOR)
def delete(request: HttpRequest, node_id: str, folder: str) -> HttpResponse:
    """Delete a folder on its node."""
    actor, to = actors.of(request), f"{reverse('models:folders')}?{urlencode({'node': node_id})}"
    try:
        gone = folders.remove(node_id, folder, actor)
    except MirbadError as error:
        return refused(request, error, to=to)
    return done(request, f"{folder} is deleted; {parts.size(gone.freed_bytes)} freed.", to=to)
