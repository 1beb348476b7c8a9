"""The part of a node's settings about container images: which ones it runs, which are there, and pulling one."""

from dataclasses import dataclass

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from agent.wire import images as rule
from jobs import images as wishes
from jobs.kinds import image_pull
from jobs.pages.contexts import OperationRow, row
from jobs.queries import unfinished
from mirbad.accounts import actors
from mirbad.kernel.errors import MirbadError, NotFound
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web import parts
from mirbad.web.access import require_role
from mirbad.web.fragments import perform, private
from models_app.artifacts import images
from models_app.artifacts.images import Shelf

_DIGEST_SHOWN = len("sha256:") + 12


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One image that the node is to run. `tone` and `icon` say whether it is there; `pull` is one that is at work."""

    reference: str
    name: str
    digest: str
    about: str
    tone: str
    icon: str
    words: str
    may_pull: bool
    pull: OperationRow | None


@dataclass(frozen=True, slots=True)
class Images:
    """The images of one node."""

    node_id: str
    rows: tuple[ImageRow, ...]
    rule_words: str
    may_name: bool
    problem: str


_BY_TAG = "Images are pulled by any name here (allow_tag_pulls in agent.json). A digest still pins one exactly."
_BY_DIGEST = (
    "Only approved images run here, by their digest. The owner of the machine approves them: approved_images in "
    "agent.json, then a restart of the agent."
)
_ABOUT_DEFAULT, _ABOUT_APPROVED = "for models that name no image", "approved"
_REFUSED = "Not approved on this node: a start with it is refused. Approve it there, or choose an approved one."


def images_of(shelf: Shelf) -> Images:
    """The view-model. One query, for the pulls at work."""
    pulls = {
        str(operation.input.get("reference")): row(operation)
        for operation in unfinished().filter(kind=image_pull.NAME, node_id_text=shelf.node.pk)
    }
    about: dict[str, list[str]] = {}
    for reference in shelf.defaults:
        about.setdefault(reference, []).append(_ABOUT_DEFAULT)
    for reference in shelf.approved:
        about.setdefault(reference, []).append(_ABOUT_APPROVED)
    for reference in pulls:
        about.setdefault(reference, [])
    return Images(
        node_id=shelf.node.pk,
        rows=tuple(_row(shelf, reference, words, pulls.get(reference)) for reference, words in about.items()),
        rule_words="" if shelf.allow_tag_pulls is None else _BY_TAG if shelf.allow_tag_pulls else _BY_DIGEST,
        may_name=bool(shelf.allow_tag_pulls),
        problem=shelf.problem,
    )


def _row(shelf: Shelf, reference: str, about: list[str], pull: OperationRow | None) -> ImageRow:
    name, _, digest = reference.partition("@")
    tone, icon, words, may_pull = _standing(shelf, reference)
    return ImageRow(
        reference=reference,
        name=name,
        digest=digest[:_DIGEST_SHOWN],
        about=", ".join(about),
        tone=tone,
        icon=icon,
        words=words if pull is None else "It comes now.",
        may_pull=may_pull and pull is None,
        pull=pull,
    )


def _standing(shelf: Shelf, reference: str) -> tuple[str, str, str, bool]:
    try:
        rule.admitted(reference, None, approved=shelf.approved, allow_tag_pulls=bool(shelf.allow_tag_pulls))
    except rule.BadImage:
        return "bad", "ban", _REFUSED, False
    found = shelf.has(reference)
    if found is not None:
        return "ok", "circle-check", f"On the node, {parts.size(found.size_bytes)}.", False
    if shelf.here is None:
        return "idle", "circle-help", "Whether it is on the node cannot be told now.", False
    return "idle", "circle-slash", "Not on the node yet: the first start pulls it.", True


@require_GET
@require_role(VIEWER)
def of_node(request: HttpRequest, node_id: str) -> HttpResponse:
    """Images of one node, read from it now; a part of its settings."""
    context: dict[str, object] = {}
    try:
        context["images"] = images_of(images.shelf(node_id))
    except NotFound as error:
        raise Http404(error.detail) from error
    except MirbadError as error:
        context["problem"] = error.detail
    return private(render(request, "jobs/_node_images.html", context))


@require_POST
@require_role(OPERATOR)
def pull(request: HttpRequest, node_id: str) -> HttpResponse:
    """Have an image pulled to a node."""
    image = request.POST.get("image", "").strip()
    actor = actors.of(request)
    return perform(
        request,
        lambda: wishes.request(node_id, image, "", actor),
        f"{image or 'The default image'} is being pulled to {node_id}.",
        to=reverse("nodes:tab", args=[node_id, "settings"]),
    )
