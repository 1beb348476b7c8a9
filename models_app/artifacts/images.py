"""Container images of a node: those it may run, the one that a model gets, and those it has already."""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.common import image_rules
from agent.common.image_rules import BadImage, Image
from agent.wire.capability import Capabilities, Delivery, Feature, Runtime
from agent.wire.images import ImageList, LocalImage
from models_app.artifacts.defaults import default_image
from models_app.artifacts.errors import AgentTooOld, RuntimeUnavailable, SpecRejected
from nodes import queries
from nodes.link import client
from nodes.models import Node

_LIST_SECONDS = 20.0
_RUNTIMES = (Runtime.VLLM, Runtime.LLAMA_CPP)


@dataclass(frozen=True, slots=True)
class ImageInventory:
    """The images of a node's Docker Engine. `here` is None while they are unknown; `problem` is the reason."""

    node: Node
    allow_tag_pulls: bool | None
    approved: tuple[str, ...]
    defaults: tuple[str, ...]
    here: tuple[LocalImage, ...] | None
    truncated: bool = False
    problem: str = ""

    def has(self, reference: str) -> LocalImage | None:
        """Return the image of that name, by digest or by tag; None also while the images are unknown."""
        return _find(self.here or (), reference)


def of_node(node_id: str) -> ImageInventory:
    """List the images of a node now. Raises the errors of `queries.require_serving`, AgentTooOld."""
    node = require_images(node_id)
    listed = client.call(node.pk, "GET", "images", answer=ImageList, timeout_seconds=_LIST_SECONDS)
    known = queries.capabilities(node)
    return ImageInventory(
        node=node,
        allow_tag_pulls=known.allow_tag_pulls if known else None,
        approved=known.approved_images if known else (),
        defaults=tuple(dict.fromkeys(filter(None, (default_of(node, runtime) for runtime in _RUNTIMES)))),
        here=None if listed.problem else listed.images,
        truncated=listed.truncated,
        problem=listed.problem or "",
    )


def require_images(node_id: str) -> Node:
    """Return the node if its images can be listed now. Raises the errors of `queries.require_serving`, AgentTooOld."""
    node = queries.require_serving(node_id)
    known = queries.capabilities(node)
    if known is not None and Feature.IMAGES not in known.features:
        raise AgentTooOld(f"The agent of node {node.pk!r} cannot pull images; upgrade it.")
    return node


def default_of(node: Node, runtime: str = Runtime.VLLM) -> str:
    """Return the default image of `runtime` on the node as a reference; "" when none is set."""
    image, digest = default_image(node, runtime)
    return reference_of(image, digest) if image else ""


def reference_of(image: str, digest: str) -> str:
    """Return one reference for an image and its digest; an invalid name is returned unchanged."""
    try:
        return image_rules.parse(image, digest or None).reference
    except BadImage:
        return image


def admitted(node: Node, image: str, digest: str) -> Image:
    """Return the image if the node would run it, by its last report.

    Raises SpecRejected with the agent's message, RuntimeUnavailable when the node has no working Docker Engine.
    """
    known = queries.capabilities(node)
    if known is not None:
        _require_containers(node, known)
        require_admitted(node, known, image, digest)
    try:
        return image_rules.parse(image, digest or None)
    except BadImage as error:
        raise SpecRejected(f"Node {node.pk!r}: Launch spec rejected: {error}") from error


def require_admitted(node: Node, known: Capabilities, image: str, digest: str) -> None:
    """Raise SpecRejected if the node would refuse a launch with this image, by its last report."""
    try:
        image_rules.admitted(
            image, digest or None, approved=known.approved_images, allow_tag_pulls=known.allow_tag_pulls
        )
    except BadImage as error:
        raise SpecRejected(f"Node {node.pk!r}: Launch spec rejected: {error}") from error


def _require_containers(node: Node, known: Capabilities) -> None:
    if Feature.DELIVERY_CONTAINER in known.features:
        return
    ways = (way.problem for way in known.runtimes if way.delivery is Delivery.CONTAINER and way.problem)
    reason = next(ways, "Docker is not running.")
    raise RuntimeUnavailable(f"Node {node.pk!r} cannot run containers: {reason}")


def _find(images: Iterable[LocalImage], reference: str) -> LocalImage | None:
    plain = _plain(reference)
    return next((image for image in images if any(_plain(name) == plain for name in image.references)), None)


def _plain(reference: str) -> str:
    try:
        return image_rules.plain(image_rules.parse(reference).reference)
    except BadImage:
        return reference
