"""A fleet in trouble: nodes that refuse the audit log, and an engine without a record."""

import json
from typing import Any

from audit import checkpoints, log, seal
from mirbad.kernel import actor, clock
from models_app.models import OrphanInstance
from nodes.models import Node, NodeWitness
from nodes.pki import authority
from tests.pages import seed

WITNESSES = (("atlas", "Atlas"), ("borea", "Borea"), ("ceres", "Ceres"))


def signed_log() -> dict[str, Any]:
    """Make nodes that can be witnesses, and a log with a signed head; return the head."""
    authority.ensure()
    for number in range(3):
        log.record("job", actor.CONFIG, detail=f"line {number}")
    seal._extend()
    for node_id, name in WITNESSES:
        if not Node.objects.filter(pk=node_id).exists():
            seed.node(node_id, name)
    ids = [node_id for node_id, _ in WITNESSES]
    Node.objects.filter(pk__in=ids).update(capabilities={"features": ["audit.witness", "audit.breaks"]})
    signed = checkpoints.sign_once()
    assert signed is not None
    return signed.head


def witness(
    node_id: str,
    head: dict[str, Any],
    *,
    agrees: bool = True,
    refused: dict[str, Any] | None = None,
    breaks: tuple[dict[str, Any], ...] = (),
) -> None:
    """Store what a node answered."""
    view = {"key": "0" * 64, "held": head, "heldAt": "2027-01-02T00:00:00Z", "refused": refused, "breaks": list(breaks)}
    NodeWitness.objects.create(node_id=node_id, view=view, agrees=agrees, at=clock.now())


def conflict(head: dict[str, Any]) -> None:
    """Have Atlas agree after a break, Borea refuse the log, and Ceres refuse another one before."""
    older = {**head, "size": 9, "root": "ab" * 32}
    line = json.dumps({"person": "ada", "role": "owner", "detail": "From X. Instead: Y. Reason: disk <b>failed</b>"})
    left = {"was": older, "now": head, "line": line, "time": "2027-01-02T00:00:00Z"}
    witness("atlas", head, breaks=(left,))
    witness("borea", older, agrees=False, refused=head)
    witness("ceres", head, refused=older)


def engine_without_a_record(node_id: str) -> None:
    """Have a node report an engine whose record its agent lost."""
    node = Node.objects.get(pk=node_id)
    OrphanInstance.objects.create(
        node_id_text=node_id, instance_id="3f0e2c58-7a61-4d0b-9a53-5d2f5c1f0a11", model_id_text="", state="ready",
        boot_id=node.boot_id, seq=node.seq,
    )  # fmt: skip
