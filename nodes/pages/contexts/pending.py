"""View-model of a node that waits for approval."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from mirbad.web import parts
from mirbad.web.parts import NOT_REPORTED
from nodes.models import Node, NodePin
from nodes.pages.contexts.system import system


@dataclass(frozen=True, slots=True)
class Pending:
    """A pending node's own description. Shown, never trusted."""

    id: str
    name: str
    spki: str
    facts: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]
    enrolled_at: datetime | None


def pending(node: Node) -> Pending:
    """Return the values to compare before approval. `node` has its pins prefetched."""
    machine = node.machine
    return Pending(
        id=node.pk,
        name=node.name,
        spki=_pin(node.pins.all(), NodePin.PENDING),
        facts=(
            ("Enrolled from", node.request_address or NOT_REPORTED),
            ("Agent address", f"{node.address}:{node.port}"),
            ("Host name", str(machine.get("hostname") or "") or NOT_REPORTED),
            ("System", system(node, None)),
            ("Agent", node.agent_version or str(machine.get("agentVersion") or "") or NOT_REPORTED),
        ),
        gpus=tuple(
            f"{gpu.get('name') or 'GPU'} · {parts.size(gpu.get('memoryBytes'))}" for gpu in machine.get("gpus") or ()
        ),
        enrolled_at=node.enrolled_at,
    )


def _pin(pins: Iterable[NodePin], slot: str) -> str:
    return next((pin.spki_sha256 for pin in pins if pin.slot == slot), "")
