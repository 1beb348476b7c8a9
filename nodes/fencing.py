"""Under which claim this master commands agents, and whether it still may.

A claim is `(epoch, instance id)`. Two masters with the same data would both be obeyed, so the instance id is bound to
one installation: data copied elsewhere gets a new id at its first start, and must take over before it commands. A
takeover moves to a higher epoch under yet another instance id, so that no two masters ever hold the same claim. No
clock has a part in any comparison.
"""

import hashlib
import secrets
from pathlib import Path

import structlog
from django.db import DatabaseError, connection, transaction

from agent.wire.fence import Claim
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Unavailable
from mirbad.live import hints
from nodes.errors import MasterFenced
from nodes.models import MasterIdentity, Node

log = structlog.get_logger(__name__)

_MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_REASON_LENGTH = 300
_DONE_KEPT = 50
_COPIED = (
    "This data was written by another installation of the master (another machine, folder or database). Nodes obey "
    "that one until this master takes over; stop the other master first."
)


def new_instance_id() -> str:
    """A fresh identity for a master."""
    return secrets.token_hex(16)


def claim() -> Claim:
    """The claim that every mutating call carries.

    Raises MasterFenced when this master may not command, Unavailable before it has an identity.
    """
    row = _row()
    if row is None:
        raise Unavailable("The master has no identity yet. Start it once, then try again.")
    epoch, instance_id, reason = row
    if reason:
        raise MasterFenced(reason)
    return Claim(epoch=epoch, instance_id=instance_id)


def present() -> Claim:
    """The claim of this master, whether it may command or not. Raises Unavailable before it has an identity."""
    row = _row()
    if row is None:
        raise Unavailable("The master has no identity yet. Start it once, then try again.")
    return Claim(epoch=row[0], instance_id=row[1])


def require_unfenced() -> None:
    """Raises MasterFenced when this master may not command and so must not change what is wanted of nodes."""
    if reason := fenced_reason():
        raise MasterFenced(reason)


def is_fenced() -> bool:
    """Whether an agent refused this master, or its data came from elsewhere, and no takeover followed."""
    return bool(fenced_reason())


def fenced_reason() -> str:
    """Why this master is fenced, as a sentence; empty when it is not."""
    return MasterIdentity.objects.values_list("fenced_reason", flat=True).first() or ""


def fence(reason: str, refused: Claim | None = None) -> bool:
    """Stop commanding: from now on `claim` raises, in every process. Says whether that is new.

    With `refused`, only while that is still the claim: a late refusal of a former one says nothing of the present one.
    """
    rows = MasterIdentity.objects.filter(fenced_reason="")
    if refused is not None:
        rows = rows.filter(epoch=refused.epoch, instance_id=refused.instance_id)
    changed = rows.update(fenced_reason=reason[:_REASON_LENGTH], updated_at=clock.now())
    if changed:
        log.critical("this master is fenced and commands no node until a takeover", reason=reason)
        transaction.on_commit(lambda: hints.changed("nodes"))
    return bool(changed)


def stands(made_under: Claim) -> bool:
    """Whether `made_under` is still this master's claim; an answer to a call made under another one is dropped."""
    return _row() == (made_under.epoch, made_under.instance_id, "")


def advance(since: Claim, epoch: int, operation_id: str, *, takeover: bool = True) -> Claim | None:
    """Move from `since` to `epoch` under a new instance id, fenced no more; None when `since` is no longer the claim.

    `takeover` is False for one node's continuation.
    """
    fresh = Claim(epoch=epoch, instance_id=new_instance_id())
    also = {"takeover_id": operation_id} if takeover else {}
    # Guarded by the claim that was read before the nodes were asked: what they said since belongs to that claim alone.
    changed = MasterIdentity.objects.filter(epoch=since.epoch, instance_id=since.instance_id).update(
        epoch=fresh.epoch,
        instance_id=fresh.instance_id,
        fenced_reason="",
        claimed_by=operation_id,
        updated_at=clock.now(),
        **also,
    )
    if not changed:
        return None
    log.warning("this master has a new claim", epoch=fresh.epoch, instance=fresh.instance_id, operation=operation_id)
    transaction.on_commit(lambda: hints.changed("nodes"))
    return fresh


def bound_to() -> str:
    """The installation that this data is bound to; empty before there is an identity."""
    return MasterIdentity.objects.values_list("bound_to", flat=True).first() or ""


def made_by(operation_id: str) -> Claim | None:
    """The present claim, if `operation_id` made it; None otherwise. For a step that is repeated after a crash."""
    row = MasterIdentity.objects.filter(claimed_by=operation_id).values_list("epoch", "instance_id").first()
    return None if row is None else Claim(epoch=row[0], instance_id=row[1])


def came_back_taken(takeover_epoch: int | None, held: Claim | None, ours: Claim) -> bool:
    """Whether a node that a takeover to `takeover_epoch` left out came back under another master since.

    Such a node stays blocked until someone continues the takeover for it; one from below reconnects by itself.
    """
    return takeover_epoch is not None and held is not None and held.epoch >= takeover_epoch and held != ours


def last_takeover() -> str:
    """Id of the last takeover; empty when there was none."""
    return MasterIdentity.objects.values_list("takeover_id", flat=True).first() or ""


def is_done(one_time_id: str) -> bool:
    """Whether the takeover that was asked for under `one_time_id` completed."""
    return one_time_id in (MasterIdentity.objects.values_list("takeovers_done", flat=True).first() or ())


def note_done(one_time_id: str) -> None:
    """Remember that the takeover asked for under `one_time_id` completed, in the caller's transaction."""
    row = MasterIdentity.objects.select_for_update().only("takeovers_done").first()
    if row is not None and one_time_id not in row.takeovers_done:
        row.takeovers_done = [*row.takeovers_done, one_time_id][-_DONE_KEPT:]
        row.save(update_fields=["takeovers_done"])


def bind_instance() -> bool:
    """Take a new instance id when this data came from another installation; says whether it did.

    With approved nodes the master is then fenced: they obey the installation that the data came from.
    """
    here = installation()
    row = MasterIdentity.objects.values("pk", "bound_to", "instance_id").first()
    if row is None or row["bound_to"] == here:
        return False
    reason = _COPIED if Node.objects.approved().exists() else ""
    fresh = new_instance_id()
    # Guarded by the old binding: of processes that start together one takes the new id, the others find it taken.
    changed = MasterIdentity.objects.filter(pk=row["pk"], bound_to=row["bound_to"]).update(
        bound_to=here, instance_id=fresh, fenced_reason=reason, claimed_by="", updated_at=clock.now()
    )
    if changed:
        log.warning(
            "this data was written by another installation: took a new instance id",
            old_instance=row["instance_id"],
            new_instance=fresh,
            takeover_needed=bool(reason),
        )
    return bool(changed)


def installation() -> str:
    """Digest of where this master's data lives; a copy of the data elsewhere gets another one.

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
        # A hosted database may keep its control data to itself; its address is the next best thing.
        named = connection.settings_dict
        return f"database:{named['HOST']}:{named['PORT']}:{named['NAME']}"


def _row() -> tuple[int, str, str] | None:
    return MasterIdentity.objects.values_list("epoch", "instance_id", "fenced_reason").first()
