"""A node's operating system as text."""

from agent.wire.capability import Capabilities
from mirbad.web import parts
from mirbad.web.parts import NOT_REPORTED
from nodes.models import Node


def system(node: Node, capabilities: Capabilities | None) -> str:
    """Return system, architecture and CPU count, as far as they are reported; an enrolling node states its own."""
    if capabilities is not None:
        words = [capabilities.os, capabilities.arch, parts.plural(capabilities.cpu_count, "CPU")]
    else:
        words = [str(node.machine.get("os") or ""), str(node.machine.get("arch") or "")]
    return " · ".join(word for word in words if word) or NOT_REPORTED
