"""Under which claim this master commands agents, and whether it still may.

A claim is `(epoch, instance id)`. Two masters with the same data would both be obeyed, so the instance id is bound to
one installation: data copied elsewhere gets a new id at its first start, and must take over before it commands.
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


def fence(reason: str) -> bool:
    """Stop commanding: from now on `claim` raises, in every process. Says whether that is new."""
    changed = MasterIdentity.objects.filter(fenced_reason="").update(fenced_reason=reason[:300], updated_at=clock.now())
    if changed:
        log.critical("this master is fenced and commands no node until a takeover", reason=reason)
        transaction.on_commit(lambda: hints.changed("nodes"))
    return bool(changed)


def stands(made_under: Claim) -> bool:
    """Whether `made_under` is still this master's claim; an answer to a call made under another one is dropped."""
    return _row() == (made_under.epoch, made_under.instance_id, "")


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
        bound_to=here, instance_id=fresh, fenced_reason=reason, updated_at=clock.now()
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
