"""The claim under which this master commands agents, and whether it still may.

A claim is `(epoch, instance id)`. Two masters with the same data would both be obeyed, so the instance id is bound to
one installation: data copied elsewhere gets a new id at its first start, and must take over before it commands. A
takeover moves to a higher epoch under yet another instance id, so that no two masters ever hold the same claim. No
clock has a part in any comparison.

A report of one node is about that node alone. This master is fenced by the refusals of two independent nodes, by that
of the node on its own machine, because its data came from elsewhere, or because an owner had it stand down.
"""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import structlog
from django.db import DatabaseError, connection, transaction
from django.db.models import QuerySet

from agent.wire.fence import MAX_EPOCH, Claim, MalformedClaim
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Unavailable
from mirbad.live import invalidations
from nodes.errors import MasterFenced
from nodes.models import MasterIdentity, Node
from nodes.states import APPROVED, INCOMPATIBLE

log = structlog.get_logger(__name__)

_MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_REASON_LENGTH = 300
_DONE_KEPT = 50
_NAMED_NODES = 3
EPOCH_REACH = 2**24
"""Epochs above this master's own up to which one report is believed. A takeover adds one, and one report raises the
next epoch by no more than this, so that no series of reports uses up `MAX_EPOCH`. A fleet gets further only when such
reports were followed and the master then went back to an old backup.
"""
CONFIRMED_REACH = 2**52
"""The highest epoch that two nodes are believed together. Above it as many epochs are left as below."""
_COPIED = (
    "This data was written by another installation of the master (another machine, folder or database). Nodes obey "
    "that one until this master takes over. Stop the other master first."
)


def new_instance_id() -> str:
    """Return a new instance id for a master."""
    return secrets.token_hex(16)


def claim() -> Claim:
    """Return the claim that every mutating call carries.

    Raises MasterFenced when this master may not command, Unavailable before it has an identity.
    """
    row = _row()
    if row is not None and row[2]:
        raise MasterFenced(row[2])
    return _to_claim(row)


def present() -> Claim:
    """Return this master's claim, whether it may command or not. Raises Unavailable before it has an identity."""
    return _to_claim(_row())


def require_unfenced() -> None:
    """Raise MasterFenced when this master may not command, and so must not change the desired state of nodes."""
    if reason := fenced_reason():
        raise MasterFenced(reason)


def is_fenced() -> bool:
    """Return whether an agent refused this master, or its data came from elsewhere, without a takeover since."""
    return bool(fenced_reason())


def fenced_reason() -> str:
    """Return the reason why this master is fenced, as a sentence; empty when it is not."""
    return MasterIdentity.objects.values_list("fenced_reason", flat=True).first() or ""


def fence(reason: str, refused: Claim | None = None) -> bool:
    """Stop commanding: from now on `claim` raises, in every process. Return whether that is new.

    With `refused`, only while that is still the claim: a late refusal of a former one says nothing of the present one.
    """
    rows = MasterIdentity.objects.filter(fenced_reason="")
    if refused is not None:
        rows = rows.filter(epoch=refused.epoch, instance_id=refused.instance_id)
    changed = rows.update(fenced_reason=reason[:_REASON_LENGTH], updated_at=clock.now())
    if changed:
        log.critical("this master is fenced; it commands no node until a takeover", reason=reason)
        transaction.on_commit(lambda: invalidations.changed("nodes"))
    return bool(changed)


def fence_if_refused(refused: Claim) -> bool:
    """Fence this master when enough nodes refused `refused`, its claim; return whether that is new.

    Two nodes are enough when they share neither machine nor address, and the node on the master's own machine alone is,
    if its report is believed. In the caller's transaction, which holds the `lock` since before it recorded the last
    refusal.
    """
    refusing = _reports(Node.objects.filter(refused_instance=refused.instance_id).order_by("pk"))
    own = [row.pk for row in refusing if row.is_bootstrap and row.epoch <= reach(refused)]
    if not own and not any(one.is_apart_from(other) for one, other in combinations(refusing, 2)):
        return False
    names = own or [row.pk for row in refusing]
    more = f" and {len(names) - _NAMED_NODES} more" if len(names) > _NAMED_NODES else ""
    subject = f"Node {names[0]} obeys" if len(names) == 1 else f"Nodes {', '.join(names[:_NAMED_NODES])}{more} obey"
    return fence(f"{subject} another master. Stop the other master, then take over.", refused)


def stand_down(reason: str) -> None:
    """Stop commanding until an owner takes over again, in the caller's transaction.

    The instance id changes, so a takeover whose step is under way cannot store its epoch.
    """
    MasterIdentity.objects.update(
        fenced_reason=reason[:_REASON_LENGTH],
        stood_down_at=clock.now(),
        instance_id=new_instance_id(),
        claimed_by="",
        updated_at=clock.now(),
    )
    log.warning("this master stands down; it commands no node until an owner takes over", reason=reason)
    transaction.on_commit(lambda: invalidations.changed("nodes"))


def stands_down() -> bool:
    """Return whether an owner had this master stand down, without a takeover since."""
    return MasterIdentity.objects.filter(stood_down_at__isnull=False).exists()


def lock() -> None:
    """Lock this master's claim until the caller's transaction ends."""
    MasterIdentity.objects.select_for_update().values_list("pk").first()


def reach(ours: Claim) -> int:
    """Return the highest epoch that a report is believed up to while `ours` is this master's claim.

    One node is believed for `EPOCH_REACH` above it. Beyond that the second highest report of two nodes counts that
    share neither machine nor address: whoever of them is right, one of the fleet obeys that epoch or a higher one.
    """
    alone = ours.epoch + EPOCH_REACH
    above = _reports(Node.objects.filter(held_epoch__gt=alone).order_by("-held_epoch", "pk"))
    for number, row in enumerate(above):
        if any(row.is_apart_from(higher) for higher in above[:number]):
            return max(alone, min(row.epoch, CONFIRMED_REACH))
    return alone


def believed_since(node_ids: Collection[str], ours: Claim) -> list[str]:
    """Return those of the nodes whose last report one node alone is not believed, and two are by now."""
    alone, together = ours.epoch + EPOCH_REACH, reach(ours)
    rows = Node.objects.filter(pk__in=node_ids, reachability=INCOMPATIBLE, held_epoch__gt=alone)
    return list(rows.filter(held_epoch__lte=together).order_by("pk").values_list("pk", flat=True))


def disbelief(reported: Claim | MalformedClaim | None, ours: Claim) -> str:
    """Return the reason why a claim that a node reports is left out of every decision; empty when it is not.

    The report stands in the node's row before this is called.
    """
    remedy = "Its fence.json is damaged, or its agent lies: restore the file, re-pair the node, or revoke it."
    if isinstance(reported, MalformedClaim):
        return f"The agent reports a claim that no master can hold (epoch {reported.shown_epoch}). {remedy}"
    if reported is not None and reported.epoch > ours.epoch + EPOCH_REACH and reported.epoch > reach(ours):
        text = f"The agent reports epoch {reported.epoch}, far above this master's {ours.epoch}. {remedy}"
        return f"{text} If this master was restored from an old backup, bring a second node online: two are believed."
    return ""


def disbelief_of_refusal(reported: Claim | MalformedClaim | None, ours: Claim) -> str:
    """Return the reason why a refusal of `ours` for the sake of `reported` is not believed; empty when it is.

    The report stands in the node's row before this is called.
    """
    if not isinstance(reported, MalformedClaim) and not is_refusal(reported, ours):
        return (
            f"The agent refused epoch {ours.epoch} without obeying another master. Upgrade or re-pair it, or revoke it."
        )
    return disbelief(reported, ours)


def is_refusal(reported: Claim | MalformedClaim | None, ours: Claim) -> bool:
    """Return whether an agent that holds `reported` may refuse `ours`: believed or not, that is one voice."""
    return isinstance(reported, Claim) and reported.epoch >= ours.epoch and reported != ours


@dataclass(frozen=True, slots=True)
class _Report:
    """The epoch that an approved node reported last, and where it runs."""

    pk: str
    is_bootstrap: bool
    address: str
    machine: str
    epoch: int

    def is_apart_from(self, other: "_Report") -> bool:
        """Return whether the two share neither machine nor address."""
        return self.address != other.address and (self.machine != other.machine or not self.machine)


def _reports(nodes: QuerySet[Node]) -> list[_Report]:
    rows = nodes.filter(lifecycle=APPROVED).values_list(
        "pk", "is_bootstrap", "address", "machine_id_hash", "held_epoch"
    )
    return [_Report(pk, own, address, machine, epoch or 0) for pk, own, address, machine, epoch in rows]


def is_current(made_under: Claim) -> bool:
    """Return whether `made_under` is still this master's claim; a response to a call under another claim is dropped."""
    return _row() == (made_under.epoch, made_under.instance_id, "")


def advance(since: Claim, epoch: int, operation_id: str, *, takeover: bool = True) -> Claim | None:
    """Move from `since` to `epoch` under a new instance id, no longer fenced; None when `since` is no longer the claim.

    `takeover` is False for one node's continuation.
    """
    fresh = Claim(epoch=epoch, instance_id=new_instance_id())
    also = {"takeover_id": operation_id} if takeover else {}
    # Guarded by the claim that was read before the nodes were called: their responses belong to that claim alone.
    changed = MasterIdentity.objects.filter(epoch=since.epoch, instance_id=since.instance_id).update(
        epoch=fresh.epoch,
        instance_id=fresh.instance_id,
        fenced_reason="",
        stood_down_at=None,
        claimed_by=operation_id,
        updated_at=clock.now(),
        **also,
    )
    if not changed:
        return None
    log.warning("this master has a new claim", epoch=fresh.epoch, instance=fresh.instance_id, operation=operation_id)
    transaction.on_commit(lambda: invalidations.changed("nodes"))
    return fresh


def bound_to() -> str:
    """Return the installation that this data is bound to; empty before there is an identity."""
    return MasterIdentity.objects.values_list("bound_to", flat=True).first() or ""


def made_by(operation_id: str) -> Claim | None:
    """Return the present claim if `operation_id` made it, else None. For a step that is repeated after a crash."""
    row = MasterIdentity.objects.filter(claimed_by=operation_id).values_list("epoch", "instance_id").first()
    return None if row is None else Claim(epoch=row[0], instance_id=row[1])


def returned_under_another_master(takeover_epoch: int | None, held: Claim | None, ours: Claim) -> bool:
    """Return whether a node left out by a takeover to `takeover_epoch` has since returned under another master.

    Such a node stays blocked until someone continues the takeover for it; one from below reconnects by itself.
    """
    return takeover_epoch is not None and held is not None and held.epoch >= takeover_epoch and held != ours


def last_takeover() -> str:
    """Return the id of the last takeover; empty when there was none."""
    return MasterIdentity.objects.values_list("takeover_id", flat=True).first() or ""


def is_done(one_time_id: str) -> bool:
    """Return whether the takeover requested under `one_time_id` completed."""
    return one_time_id in (MasterIdentity.objects.values_list("takeovers_done", flat=True).first() or ())


def note_done(one_time_id: str) -> None:
    """Record that the takeover requested under `one_time_id` completed, in the caller's transaction."""
    row = MasterIdentity.objects.select_for_update().only("takeovers_done").first()
    if row is not None and one_time_id not in row.takeovers_done:
        row.takeovers_done = [*row.takeovers_done, one_time_id][-_DONE_KEPT:]
        row.save(update_fields=["takeovers_done"])


def bind_instance() -> bool:
    """Create a new instance id when this data came from another installation; return whether it did.

    With approved nodes the master is then fenced: they obey the installation that the data came from.
    """
    here = installation()
    row = MasterIdentity.objects.values("pk", "bound_to", "instance_id").first()
    if row is None or row["bound_to"] == here:
        return False
    reason = _COPIED if Node.objects.approved().exists() else ""
    fresh = new_instance_id()
    # Guarded by the old binding: of processes that start together one writes the new id, the others find it written.
    changed = MasterIdentity.objects.filter(pk=row["pk"], bound_to=row["bound_to"]).update(
        bound_to=here,
        instance_id=fresh,
        fenced_reason=reason,
        stood_down_at=None,
        claimed_by="",
        updated_at=clock.now(),
    )
    if changed:
        log.warning(
            "data of another installation: created a new instance id",
            old_instance=row["instance_id"],
            new_instance=fresh,
            takeover_needed=bool(reason),
        )
    return bool(changed)


def installation() -> str:
    """Return a digest of the location of this master's data; a copy of the data elsewhere gets another one.

    SQLite: machine id and data folder. PostgreSQL: the cluster and database, whichever host the master runs on.
    A copy of a whole machine, or a physical copy of a cluster, cannot be told apart.
    """
    text = _database_identity() if connection.vendor == "postgresql" else _folder_identity()
    return hashlib.sha256(text.encode()).hexdigest()


def _folder_identity() -> str:
    machine = next((path.read_text().strip() for path in _MACHINE_ID_FILES if path.is_file()), "")
    return f"folder:{machine}:{settings().data.resolve()}"


def _database_identity() -> str:
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()) "
                "FROM pg_control_system()"
            )
            cluster, database = cursor.fetchone()
            return f"database:{cluster}:{database}"
    except DatabaseError:
        # A hosted database may hide its control data; its address is the next best identity.
        named = connection.settings_dict
        return f"database:{named['HOST']}:{named['PORT']}:{named['NAME']}"


def _row() -> tuple[int, str, str] | None:
    return MasterIdentity.objects.values_list("epoch", "instance_id", "fenced_reason").first()


def _to_claim(row: tuple[int, str, str] | None) -> Claim:
    if row is None:
        raise Unavailable("The master has no identity yet. Start the master once, then try again.")
    epoch, instance_id, _ = row
    if not 1 <= epoch <= MAX_EPOCH:
        raise Unavailable(f"The database holds epoch {epoch}, which no node accepts. Restore a backup of the database.")
    return Claim(epoch=epoch, instance_id=instance_id)
