"""The progress of each node in a CA rotation: its observations, and its conditions on pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from mirbad.kernel import clock
from nodes import conditions
from nodes.models import Authority, CaRotation, CaRotationNode, Node, NodeCondition, NodePin
from nodes.pki.certs import from_pem
from nodes.pki.rotation import authority_of
from nodes.states import APPROVED, CA_CLOSING, CA_ROLLING_BACK, ONLINE, PENDING, RE_PAIR

SOURCE = "ca-rotation"
STRANDED = "stranded"
LEFTOVER = "leftover"
LEFTOVER_CODE = "ca_trust_leftover"
PENDING_CODE = "ca_rotation_pending"
_PROBLEM_LENGTH = 300


@dataclass(frozen=True, slots=True)
class Member:
    """A node that has a key, in the open rotation. `issuer` is the SHA-256 of the CA of its certificate."""

    node_id: str
    name: str
    pending: bool
    online: bool
    spki: str
    issuer: str
    pinned_at: datetime
    record: CaRotationNode

    def has_passed(self, stage: str) -> bool:
        """Return whether the node has passed `stage` with its present key."""
        return self.record.done_stage == stage and self.record.spki == self.spki

    def was_tried_since(self, moment: datetime) -> bool:
        """Return whether an attempt was made on the node at or after `moment`."""
        return self.record.tried_at is not None and self.record.tried_at >= moment

    def may_hold_new(self, rotation: CaRotation) -> bool:
        """Return whether the node may know the new CA: it was given it, or enrolled since the start."""
        return self.record.told or self.pinned_at >= rotation.started_at


def read(rotation: CaRotation) -> list[Member]:
    """Return every node with a key that is not revoked; three statements."""
    authorities = list(Authority.objects.all())
    records = {record.node_id: record for record in CaRotationNode.objects.filter(rotation=rotation)}
    found = []
    for pin in _pins():
        known = records.get(pin.node_id)
        # Observations of another key do not count: the node was re-paired or has rotated since.
        record = known or CaRotationNode(rotation=rotation, node_id=pin.node_id)
        found.append(
            Member(
                node_id=pin.node_id,
                name=pin.node.name,
                online=pin.node.reachability == ONLINE,
                pending=pin.node.lifecycle == PENDING,
                spki=pin.spki_sha256,
                issuer=authority_of(from_pem(pin.cert_pem), authorities) if pin.cert_pem else "",
                pinned_at=pin.created_at,
                record=record,
            )
        )
    return found


def note_given_ca(rotation: CaRotation, node_ids: list[str]) -> None:
    """Record that these nodes are given the new CA, before the call: a crash after it must not hide that."""
    known = CaRotationNode.objects.filter(rotation=rotation, node_id__in=node_ids)
    known.filter(told=False).update(told=True)
    missing = set(node_ids) - set(known.values_list("node_id", flat=True))
    rows = [CaRotationNode(rotation=rotation, node_id=node_id, told=True) for node_id in sorted(missing)]
    CaRotationNode.objects.bulk_create(rows, ignore_conflicts=True)


def note(member: Member, *, passed: str = "", problem: str = "") -> None:
    """Record the result of an attempt on a node: the `stage` that it passed, or its `problem`."""
    columns: dict[str, object] = {"tried_at": clock.now(), "problem": problem[:_PROBLEM_LENGTH]}
    if passed:
        columns |= {"done_stage": passed, "spki": member.spki}
    CaRotationNode.objects.update_or_create(
        rotation_id=member.record.rotation_id, node_id=member.node_id, defaults=columns
    )


def update_conditions(rotation: CaRotation, members: list[Member]) -> None:
    """Set the condition of each node without a committed certificate under the new CA; one statement if true."""
    goal = rotation.old_sha256 if rotation.stage == CA_ROLLING_BACK else rotation.new_sha256
    conditions_by_node = {member.node_id: _pending(rotation, member) for member in members if member.issuer != goal}
    _write(conditions_by_node)


def settle(rotation: CaRotation, members: list[Member]) -> tuple[list[str], list[str]]:
    """Record the nodes left behind when `rotation` ends now, in the caller's transaction; return stranded, leftover.

    A stranded node's certificate is of the CA that is removed: the node has to be re-paired. A leftover one still
    trusts that CA, and is updated when it responds again.
    """
    back = rotation.stage == CA_ROLLING_BACK
    goal = rotation.old_sha256 if back else rotation.new_sha256
    stranded = [member for member in members if member.issuer != goal]
    passed = CA_ROLLING_BACK if back else CA_CLOSING
    leftover = [
        member
        for member in members
        if member.issuer == goal and not member.has_passed(passed) and (not back or member.may_hold_new(rotation))
    ]
    for outcome, some in ((STRANDED, stranded), (LEFTOVER, leftover)):
        for member in some:
            CaRotationNode.objects.update_or_create(
                rotation=rotation, node_id=member.node_id, defaults={"outcome": outcome, "spki": member.spki}
            )
    words = "the CA rotation was rolled back" if back else "the CA rotation was closed early"
    _write(
        {
            **{member.node_id: _stranded(words) for member in stranded},
            **{member.node_id: _trusts_former_ca() for member in leftover},
        }
    )
    return [member.node_id for member in stranded], [member.node_id for member in leftover]


def strand_all(reason: str) -> list[str]:
    """Set the condition of every node that it has to be re-paired for `reason`; in the caller's transaction."""
    node_ids = [pin.node_id for pin in _pins()]
    _write({node_id: _stranded(reason) for node_id in node_ids})
    return node_ids


def tidy() -> list[str]:
    """Clear conditions of nodes left behind that no longer apply: re-paired, revoked or updated since.

    Return the nodes that still trust a former CA beside the present one.
    """
    said = dict(NodeCondition.objects.filter(source=SOURCE).values_list("node_id", "code"))
    if not said or CaRotation.objects.filter(finished_at=None).exists():
        return []
    current = list(Authority.objects.filter(slot=Authority.CURRENT))
    pins = {pin.node_id: pin for pin in _pins()}
    left: list[str] = []
    for node_id, code in said.items():
        pin = pins.get(node_id)
        issued_now = pin is not None and bool(pin.cert_pem) and authority_of(from_pem(pin.cert_pem), current) != ""
        if pin is None or (code != LEFTOVER_CODE and issued_now):
            conditions.replace(node_id, SOURCE, [])
        elif code == LEFTOVER_CODE:
            left.append(node_id)
    return left


def caught_up(node_id: str) -> None:
    """Record that the node trusts the present CA alone."""
    conditions.replace(node_id, SOURCE, [])


def _pending(rotation: CaRotation, member: Member) -> conditions.Condition:
    under = "the kept CA" if rotation.stage == CA_ROLLING_BACK else "the new CA"
    which = f"CA rotation {rotation.pk} is open (stage {rotation.stage})"
    return conditions.Condition(PENDING_CODE, f"{which}, and this node has no certificate under {under} yet.")


def _stranded(reason: str) -> conditions.Condition:
    return conditions.Condition(
        RE_PAIR, f"Its certificate is of a former CA: {reason}. Re-pair the node (join --rekey)."
    )


def _trusts_former_ca() -> conditions.Condition:
    return conditions.Condition(
        LEFTOVER_CODE, "The node still trusts a former CA beside the present one. It is updated when it responds."
    )


def _write(conditions_by_node: Mapping[str, conditions.Condition]) -> None:
    stored = {row.node_id: (row.code, row.detail) for row in NodeCondition.objects.filter(source=SOURCE)}
    for node_id in stored.keys() - conditions_by_node.keys():
        conditions.replace(node_id, SOURCE, [])
    for node_id, condition in conditions_by_node.items():
        if stored.get(node_id) != (condition.code, condition.detail):
            conditions.replace(node_id, SOURCE, [condition])


def _pins() -> list[NodePin]:
    """Return the pin that counts of each node that is not revoked: current once approved, pending before."""
    rows = NodePin.objects.filter(node__in=Node.objects.not_revoked()).select_related("node")
    return [pin for pin in rows if pin.slot == (NodePin.CURRENT if pin.node.lifecycle == APPROVED else NodePin.PENDING)]
