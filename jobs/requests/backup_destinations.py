"""Destinations of backups: created, changed, tried and deleted by owners."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import events
from jobs.backup import making, schedule, storage
from jobs.backup.destinations import settings as kinds
from jobs.backup.destinations.settings import DestinationSettings
from jobs.kinds import backup
from jobs.models import BackupDestination
from jobs.queries import unfinished
from jobs.requests.backups import require_destination
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, InvalidRequest

ACTION = "backup-destination"
_MOST = 20
_MOST_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class DestinationInput:
    """A destination as a person describes it. None for `secret` or `passphrase` keeps the stored one, "" removes it."""

    name: str
    kind: str
    settings: dict[str, Any]
    secret: str | None = field(default=None, repr=False)
    passphrase: str | None = field(default=None, repr=False)
    schedule: str = ""
    keep_count: int | None = None
    keep_days: int | None = None
    warn_after_hours: int | None = None


def create(entered: DestinationInput, actor: Actor) -> BackupDestination:
    """Create a destination. Raises InvalidRequest, WeakPassword, Conflict."""
    with audit_log.refusals_recorded(ACTION, actor, target=entered.name[:60]), transaction.atomic():
        if BackupDestination.objects.count() >= _MOST:
            raise Conflict(f"There are {_MOST} destinations already. Delete one first.")
        now = clock.now()
        row = BackupDestination(kind=entered.kind, warn_from=now)
        _fill(row, entered, now)
        _save(row)
        _record(actor, row, "created")
        return row


def update(destination_id: int, entered: DestinationInput, actor: Actor) -> BackupDestination:
    """Change a destination; its kind stays. Raises NotFound, InvalidRequest, WeakPassword, Conflict."""
    with audit_log.refusals_recorded(ACTION, actor, target=entered.name[:60]), transaction.atomic():
        require_destination(destination_id)
        row = BackupDestination.objects.select_for_update().get(pk=destination_id)
        if entered.kind != row.kind:
            raise InvalidRequest("The kind of a destination cannot be changed. Create another destination.")
        _fill(row, entered, clock.now())
        _save(row)
        _record(actor, row, "changed")
        return row


def delete(destination_id: int, actor: Actor) -> None:
    """Forget a destination; the files there stay. Raises NotFound, Conflict while a backup is made for it."""
    with audit_log.refusals_recorded(ACTION, actor, target=str(destination_id)), transaction.atomic():
        row = require_destination(destination_id)
        target = f"destination-{row.pk}"
        if unfinished().filter(kind=backup.NAME, target_id=target).exists():
            raise Conflict("A backup is being made for this destination. Wait for its end, or cancel it.")
        _record(actor, row, "deleted; its files stay")
        row.delete()


def try_out(destination_id: int, actor: Actor) -> None:
    """Write, read and delete a small file there. Raises NotFound, BackupDestinationFailed, SealBroken."""
    with audit_log.refusals_recorded(ACTION, actor, target=str(destination_id)):
        row = require_destination(destination_id)
        storage.try_out(storage.settings_of(row), storage.secret_of(row))


def _fill(row: BackupDestination, entered: DestinationInput, now: datetime) -> None:
    found = kinds.parse(entered.kind, entered.settings)
    storage.require_outside(found)
    row.name = _name(entered.name)
    _set_secret(row, found, entered.secret)
    row.settings = found.model_dump(mode="json", by_alias=True)
    _set_passphrase(row, entered.passphrase)
    expression = " ".join(entered.schedule.split())
    if expression:
        schedule.check(expression)
    if expression != row.schedule:
        row.schedule_from = now if expression else None
    if (expression, entered.warn_after_hours) != (row.schedule, row.warn_after_hours):
        row.warn_from = now
    row.schedule = expression
    for name in ("keep_count", "keep_days", "warn_after_hours"):
        setattr(row, name, _count(name, getattr(entered, name)))


def _save(row: BackupDestination) -> None:
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as error:
        text = f"There is a destination {row.name!r} already. Choose another name."
        raise InvalidRequest(text, problems=[{"code": "name_taken", "message": text, "field": "name"}]) from error
    events.changed("")


def _record(actor: Actor, row: BackupDestination, what: str) -> None:
    where = storage.settings_of(row).where
    audit_log.record(ACTION, actor, target=row.name, detail=f"{what}: {row.kind}, {where}")


def _name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > 60 or not name.isprintable():
        raise _problem("name_invalid", "name", "Enter a name of at most 60 printable characters.")
    return name


def _set_secret(row: BackupDestination, found: DestinationSettings, secret: str | None) -> None:
    if row.kind not in kinds.WITH_SECRET:
        row.secret_sealed = None
        return
    if secret:
        if len(secret) > 500 or any(character in secret for character in "\r\n\0"):
            raise _problem("secret_invalid", "secret", "Enter at most 500 characters without line breaks.")
        row.secret_sealed = storage.seal_secret(secret)
        return
    word = "password" if row.kind == "smb" else "secret key"
    if row.secret_sealed is None or secret == "":
        raise _problem("secret_required", "secret", f"Enter the {word}.")
    # A stored password must not be sent to a place that its owner did not enter it for.
    if kinds.ADAPTER.validate_python(row.settings) != found:
        raise _problem("secret_required", "secret", f"Enter the {word} again: it was stored for other settings.")


def _set_passphrase(row: BackupDestination, passphrase: str | None) -> None:
    if passphrase:
        making.check_passphrase(passphrase)
    if passphrase is not None:
        row.passphrase_sealed = storage.seal_kept_passphrase(passphrase)


def _count(name: str, value: int | None) -> int | None:
    if value is not None and not 1 <= value <= _MOST_KEPT:
        raise _problem("number_invalid", name, f"Enter a number from 1 to {_MOST_KEPT}, or nothing.")
    return value


def _problem(code: str, name: str, text: str) -> InvalidRequest:
    return InvalidRequest(text, problems=[{"code": code, "message": text, "field": name}])
