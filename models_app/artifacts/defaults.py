"""The container image of models that name none."""

from agent.wire.capability import Runtime
from mirbad.kernel.conf import settings
from nodes.models import Node


def default_image(node: Node, runtime: str) -> tuple[str, str]:
    """Return the default (image, digest) of `runtime` on `node`: the node's, else the master's; empty without any."""
    image, digest = node.default_image, node.default_image_digest
    if runtime == Runtime.LLAMA_CPP:
        image, digest = node.default_llama_image, node.default_llama_image_digest
    if not image:
        image, _, digest = settings().engine_image.partition("@")
    return image, digest
