"""Requests to make and to delete backups."""

import secrets

from django.db import IntegrityError, transaction

from audit import log as audit_log
from jobs import ledger
from jobs.backup import making, storage
from jobs.kinds import backup, backup_delete
from jobs.models import Backup, BackupDestination, Operation
from jobs.queries import open_operation
from jobs.states import OPEN
from mirbad.kernel import clock
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound
from mirbad.kernel.ids import new_operation_id
from nodes.pki import store

ACTION = "backup"
DELETE = "backup.delete"
_TARGET = "backup"
_FILE = "backup-file"


def require(backup_id: int) -> Backup:
    """Return a backup. Raises NotFound."""
    row = Backup.objects.select_related("destination").filter(pk=backup_id).first()
    if row is None:
        raise NotFound(f"Backup {backup_id} not found.")
    return row


def require_destination(destination_id: int) -> BackupDestination:
    """Return a destination. Raises NotFound."""
    row = BackupDestination.objects.filter(pk=destination_id).first()
    if row is None:
        raise NotFound(f"Destination {destination_id} not found.")
    return row


def request(
    actor: Actor,
    *,
    passphrase: str | None,
    with_secrets: bool = True,
    destination_id: int | None = None,
    scheduled: bool = False,
) -> Operation:
    """Make a backup, and copy it to a destination if one is named. Without `passphrase` its kept one is used.

    Raises InvalidRequest (no passphrase), WeakPassword, NotFound, Conflict (one is being made), SealBroken.
    """
    with audit_log.refusals_recorded(ACTION, actor):
        destination = require_destination(destination_id) if destination_id is not None else None
        chosen = _passphrase(passphrase or None, destination) if with_secrets else None
        target = f"destination-{destination.pk}" if destination is not None else "master"
        existing = open_operation(backup.KIND.concurrency_group, _TARGET, target)
        if existing is not None:
            text = "A backup is being made for the same destination. Wait for its end, or cancel it."
            raise Conflict(text, fields={"operationId": existing.pk})
        return _create(actor, chosen, destination, target, scheduled=scheduled)


def _passphrase(typed: str | None, destination: BackupDestination | None) -> str:
    if typed is not None:
        making.check_passphrase(typed)
        return typed
    kept = storage.kept_passphrase_of(destination) if destination is not None else None
    if kept is None:
        text = "Enter a passphrase, or make the backup without secrets."
        raise InvalidRequest(text, problems=[{"code": "passphrase_required", "message": text, "field": "passphrase"}])
    return kept


def _create(
    actor: Actor, passphrase: str | None, destination: BackupDestination | None, target: str, *, scheduled: bool
) -> Operation:
    operation_id = new_operation_id()
    where = destination.name if destination is not None else ""
    name = f"mirbad-{clock.now():%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}.zip"
    try:
        with transaction.atomic():
            row = Backup.objects.create(
                name=name,
                operation_id_text=operation_id,
                destination=destination,
                destination_name=where,
                instance_id=store.master().instance_id,
                with_secrets=passphrase is not None,
                scheduled=scheduled,
                passphrase_sealed=storage.seal_passphrase(passphrase),
                actor=actor.name,
                person=actor.person[:150],
            )
            data = backup.BackupInput(backup_id=row.pk, name=name, destination=where)
            text = "Backup due by its schedule." if scheduled else "Backup requested."
            operation = ledger.create(
                backup.KIND, backup.WRITING, ledger.Subject(_TARGET, target), actor, text, data,
                operation_id=operation_id,
            )  # fmt: skip
            secret = "with secrets" if passphrase is not None else "without secrets"
            audit_log.record(
                ACTION,
                actor,
                operation_id=operation.pk,
                target=name,
                result="accepted",
                detail=f"{secret}, to {where}" if where else secret,
            )
            return operation
    except IntegrityError as error:
        raise Conflict("A backup for the same destination was just started; reload.") from error


def delete(backup_id: int, actor: Actor) -> Operation:
    """Delete a backup with its copy; repeated, it returns the same operation. Raises NotFound, Conflict."""
    with audit_log.refusals_recorded(DELETE, actor, target=str(backup_id)):
        row = require(backup_id)
        if row.outcome == OPEN:
            text = "The backup is being made. Cancel it, and its file is deleted."
            raise Conflict(text, fields={"operationId": row.operation_id_text})
        existing = open_operation(backup_delete.KIND.concurrency_group, _FILE, str(row.pk))
        return existing or _create_delete(row, actor)


def _create_delete(row: Backup, actor: Actor) -> Operation:
    where = row.destination.name if row.destination is not None else ""
    data = backup_delete.BackupDeleteInput(backup_id=row.pk, name=row.name, destination=where)
    try:
        with transaction.atomic():
            subject = ledger.Subject(_FILE, str(row.pk))
            text = "Deletion requested."
            operation = ledger.create(backup_delete.KIND, backup_delete.DELETING, subject, actor, text, data)
            audit_log.record(DELETE, actor, operation_id=operation.pk, target=row.name, result="accepted", detail=where)
            return operation
    except IntegrityError as error:
        raise Conflict("The backup is being deleted already; reload.") from error
