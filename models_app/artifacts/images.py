"""Container images of a node: which ones it runs, which one a model gets there, and which are there already."""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.wire import images as rule
from agent.wire.capability import Capabilities, Delivery, Feature, Runtime
from agent.wire.images import BadImage, Image, ImageHere, ImageList
from models_app.artifacts.defaults import default_image
from models_app.artifacts.errors import AgentTooOld, RuntimeUnavailable, SpecRejected
from nodes import queries
from nodes.link import client
from nodes.models import Node

_LIST_SECONDS = 20.0
_RUNTIMES = (Runtime.VLLM, Runtime.LLAMA_CPP)


@dataclass(frozen=True, slots=True)
class Shelf:
    """What a node's Docker Engine has. `here` is None while that cannot be told; `problem` says why."""

    node: Node
    allow_tag_pulls: bool | None
    approved: tuple[str, ...]
    defaults: tuple[str, ...]
    here: tuple[ImageHere, ...] | None
    truncated: bool = False
    problem: str = ""

    def has(self, reference: str) -> ImageHere | None:
        """The image of that name, by digest or by tag; None also while nothing can be told."""
        return _find(self.here or (), reference)


def shelf(node_id: str) -> Shelf:
    """The images of a node, read from it now. Raises what `queries.require_serving` raises, AgentTooOld."""
    node = require_images(node_id)
    listed = client.call(node.pk, "GET", "images", answer=ImageList, timeout_seconds=_LIST_SECONDS)
    known = queries.capabilities(node)
    return Shelf(
        node=node,
        allow_tag_pulls=known.allow_tag_pulls if known else None,
        approved=known.approved_images if known else (),
        defaults=tuple(dict.fromkeys(filter(None, (default_of(node, runtime) for runtime in _RUNTIMES)))),
        here=None if listed.problem else listed.images,
        truncated=listed.truncated,
        problem=listed.problem or "",
    )


def require_images(node_id: str) -> Node:
    """The node, when images can be asked of it now. Raises what `queries.require_serving` raises, AgentTooOld."""
    node = queries.require_serving(node_id)
    known = queries.capabilities(node)
    if known is not None and Feature.IMAGES not in known.features:
        raise AgentTooOld(f"The agent of node {node.pk!r} cannot pull images by itself; upgrade it.")
    return node


def default_of(node: Node, runtime: str = Runtime.VLLM) -> str:
    """What models of `runtime` without an image of their own run on the node, as a reference; "" when none is set."""
    image, digest = default_image(node, runtime)
    return reference_of(image, digest) if image else ""


def reference_of(image: str, digest: str) -> str:
    """One name for an image and its digest. A name that is none is given back as it is."""
    try:
        return rule.parse(image, digest or None).reference
    except BadImage:
        return image


def admitted(node: Node, image: str, digest: str) -> Image:
    """The image, when the node would take it, by its last report. SpecRejected with the agent's words.

    RuntimeUnavailable when the node has no Docker Engine that works.
    """
    known = queries.capabilities(node)
    if known is not None:
        _require_containers(node, known)
        require_admitted(node, known, image, digest)
    try:
        return rule.parse(image, digest or None)
    except BadImage as error:
        raise SpecRejected(f"Node {node.pk!r}: Launch spec rejected: {error}") from error


def require_admitted(node: Node, known: Capabilities, image: str, digest: str) -> None:
    """A launch with this image would not be refused by the node, by its last report. Raises SpecRejected."""
    try:
        rule.admitted(image, digest or None, approved=known.approved_images, allow_tag_pulls=known.allow_tag_pulls)
    except BadImage as error:
        raise SpecRejected(f"Node {node.pk!r}: Launch spec rejected: {error}") from error


def _require_containers(node: Node, known: Capabilities) -> None:
    if Feature.DELIVERY_CONTAINER in known.features:
        return
    ways = (way.problem for way in known.runtimes if way.delivery is Delivery.CONTAINER and way.problem)
    reason = next(ways, "Docker does not run on it.")
    raise RuntimeUnavailable(f"Node {node.pk!r} cannot run containers: {reason}")


def _find(images: Iterable[ImageHere], reference: str) -> ImageHere | None:
    wanted = _plain(reference)
    return next((image for image in images if any(_plain(name) == wanted for name in image.references)), None)


def _plain(reference: str) -> str:
    try:
        return rule.plain(rule.parse(reference).reference)
    except BadImage:
        return reference
