"""Container images of a node, as a part of its settings: its images, and a pull of one."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from jobs.pages.contexts.images import images_of
from jobs.requests import images as requests
from mirbad.accounts import actors
from mirbad.kernel.errors import MirbadError, NotFound
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import perform, private
from models_app.artifacts import images


@require_GET
@require_role(VIEWER)
def of_node(request: HttpRequest, node_id: str) -> HttpResponse:
    """Show the images of one node, read from it now; a part of its settings."""
    context: dict[str, object] = {}
    try:
        context["images"] = images_of(images.of_node(node_id))
    except NotFound:
        raise
    except MirbadError as error:
        context["problem"] = error.detail
    return private(render(request, "jobs/_node_images.html", context))


@require_POST
@require_role(OPERATOR)
def pull(request: HttpRequest, node_id: str) -> HttpResponse:
    """Pull an image to a node."""
    image = request.POST.get("image", "").strip()
    actor = actors.of(request)
    return perform(
        request,
        lambda: requests.request(node_id, image, "", actor),
        f"Pulling {image or 'the default image'} to {node_id}.",
        to=reverse("nodes:tab", args=[node_id, "settings"]),
    )
