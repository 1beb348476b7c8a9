"""The fleet's CA and its rotation for people and programs. A constant number of statements."""

from dataclasses import dataclass
from datetime import datetime

from nodes.models import Authority, CaRotation, CaRotationNode, NodeCondition
from nodes.pki import members, outside, rotation
from nodes.pki.certs import from_pem
from nodes.states import CA_ROLLING_BACK, RE_PAIR


@dataclass(frozen=True, slots=True)
class Ca:
    """One valid CA. `slot` is its role (`nodes.models.Authority`)."""

    slot: str
    sha256: str
    not_after: datetime


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """One node in a rotation. `state` is done, waiting, stranded or leftover; `problem` is the reason why it waits."""

    node_id: str
    name: str
    state: str
    problem: str
    tried_at: datetime | None


@dataclass(frozen=True, slots=True)
class RotationProgress:
    """The CAs, and the newest rotation if there was one."""

    authorities: tuple[Ca, ...]
    configured: bool
    rotation: CaRotation | None
    nodes: tuple[NodeProgress, ...] = ()
    to_re_pair: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Return whether a rotation is open."""
        return self.rotation is not None and self.rotation.finished_at is None

    @property
    def can_roll_back(self) -> bool:
        """Return whether the rotation can be rolled back."""
        return self.rotation is not None and self.is_open and self.rotation.stage in rotation.CAN_ROLL_BACK

    @property
    def can_close(self) -> bool:
        """Return whether nodes that do not respond may be left behind."""
        found = self.rotation
        return found is not None and self.is_open and found.stage in rotation.CAN_CLOSE and found.close_asked_at is None

    @property
    def done(self) -> int:
        """The number of nodes that have passed the present stage."""
        return sum(node.state == "done" for node in self.nodes)


def read() -> RotationProgress:
    """Return the present CAs and the newest rotation."""
    rows = Authority.objects.exclude(slot=Authority.RETIRED)
    authorities = tuple(Ca(row.slot, row.sha256, from_pem(row.cert_pem).not_valid_after_utc) for row in rows)
    found = rotation.last()
    stranded = NodeCondition.objects.filter(source=members.SOURCE, code=RE_PAIR)
    return RotationProgress(
        authorities=tuple(sorted(authorities, key=lambda ca: ca.slot)),
        configured=outside.is_configured(),
        rotation=found,
        nodes=_nodes(found) if found is not None else (),
        to_re_pair=tuple(stranded.order_by("node_id").values_list("node_id", flat=True)),
    )


def of_node(node_id: str) -> NodeProgress | None:
    """Return the progress of one node in the open rotation; None when none is open, or the node has no key."""
    found = rotation.opened()
    return next((node for node in _nodes(found) if node.node_id == node_id), None) if found is not None else None


def _nodes(found: CaRotation) -> tuple[NodeProgress, ...]:
    if found.finished_at is not None:
        left = CaRotationNode.objects.filter(rotation=found).exclude(outcome="").select_related("node")
        return tuple(
            NodeProgress(row.node_id, row.node.name, row.outcome, row.problem, row.tried_at)
            for row in left.order_by("node_id")
        )
    goal = found.old_sha256 if found.stage == CA_ROLLING_BACK else found.new_sha256
    return tuple(
        NodeProgress(
            member.node_id,
            member.name,
            "done" if member.has_passed(found.stage) else "waiting",
            member.record.problem or ("" if member.issuer == goal else "Not checked yet."),
            member.record.tried_at,
        )
        for member in sorted(members.read(found), key=lambda member: member.node_id)
    )
