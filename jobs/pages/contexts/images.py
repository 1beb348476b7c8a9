"""View-model of the container images of a node."""

from dataclasses import dataclass

from agent.common import image_rules
from jobs.kinds import image_pull
from jobs.pages.contexts.rows import OperationRow, row
from jobs.queries import unfinished
from mirbad.web import parts
from models_app.artifacts.images import ImageInventory

_DIGEST_SHOWN = len("sha256:") + 12


@dataclass(frozen=True, slots=True)
class ImageRow:
    """One image of a node. `tone` and `icon` are for its presence there; `pull` is an open pull of it."""

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
class NodeImagesContext:
    """The images of one node."""

    node_id: str
    rows: tuple[ImageRow, ...]
    rule_words: str
    may_name: bool
    problem: str


_BY_TAG = "This node pulls images by any name (allow_tag_pulls in agent.json). A digest still pins one exactly."
_BY_DIGEST = (
    "This node runs approved images only, by digest. To approve one, the owner of the machine adds it to "
    "approved_images in agent.json and restarts the agent."
)
_ABOUT_DEFAULT, _ABOUT_APPROVED = "for models without an image", "approved"
_REFUSED = "Not approved on this node, so starts with it are refused. Approve it there, or choose an approved one."


def images_of(inventory: ImageInventory) -> NodeImagesContext:
    """Return the images of a node. One query, for the open pulls."""
    pulls = {
        image_pull.KIND.step(operation).input.reference: row(operation)
        for operation in unfinished().filter(kind=image_pull.NAME, node_id_text=inventory.node.pk)
    }
    about: dict[str, list[str]] = {}
    for reference in inventory.defaults:
        about.setdefault(reference, []).append(_ABOUT_DEFAULT)
    for reference in inventory.approved:
        about.setdefault(reference, []).append(_ABOUT_APPROVED)
    for reference in pulls:
        about.setdefault(reference, [])
    return NodeImagesContext(
        node_id=inventory.node.pk,
        rows=tuple(_row(inventory, reference, words, pulls.get(reference)) for reference, words in about.items()),
        rule_words="" if inventory.allow_tag_pulls is None else _BY_TAG if inventory.allow_tag_pulls else _BY_DIGEST,
        may_name=bool(inventory.allow_tag_pulls),
        problem=inventory.problem,
    )


def _row(inventory: ImageInventory, reference: str, about: list[str], pull: OperationRow | None) -> ImageRow:
    name, _, digest = reference.partition("@")
    tone, icon, words, may_pull = _presence(inventory, reference)
    return ImageRow(
        reference=reference,
        name=name,
        digest=digest[:_DIGEST_SHOWN],
        about=", ".join(about),
        tone=tone,
        icon=icon,
        words=words if pull is None else "Pulling.",
        may_pull=may_pull and pull is None,
        pull=pull,
    )


def _presence(inventory: ImageInventory, reference: str) -> tuple[str, str, str, bool]:
    try:
        image_rules.admitted(
            reference, None, approved=inventory.approved, allow_tag_pulls=bool(inventory.allow_tag_pulls)
        )
    except image_rules.BadImage:
        return "bad", "ban", _REFUSED, False
    found = inventory.has(reference)
    if found is not None:
        return "ok", "circle-check", f"On the node, {parts.size(found.size_bytes)}.", False
    if inventory.here is None:
        return "idle", "circle-help", "Unknown: the node does not answer.", False
    return "idle", "circle-slash", "Not on the node yet. The first start pulls it.", True
