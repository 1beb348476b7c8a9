"""Backups in every state, and a destination of each kind."""

from datetime import timedelta

from jobs import ledger
from jobs.backup import storage
from jobs.kinds import backup
from jobs.models import Backup, BackupDestination
from mirbad.kernel import clock
from nodes.pki import authority
from tests.pages.seed import ADMIN

PLACES = {
    "folder": {"path": "/mnt/disk/mirbad"},
    "smb": {"host": "nas.home.example", "share": "backup", "folder": "mirbad", "username": "mirbad", "domain": ""},
    "nfs": {"host": "192.0.2.9", "export": "/srv/backup", "folder": ""},
    "s3": {
        "endpoint": "https://s3.example.org:9000", "region": "us-east-1", "bucket": "mirbad-backups", "prefix": "lab",
        "accessKeyId": "AKIAEXAMPLE",
    },
}  # fmt: skip


def rows() -> dict[str, int]:
    """Make them; return the ids of the destinations by kind."""
    authority.ensure()
    now = clock.now()
    made: dict[str, BackupDestination] = {}
    for kind, place in PLACES.items():
        made[kind] = BackupDestination.objects.create(
            name=f"the {kind}", kind=kind, settings={"kind": kind, **place}, keep_count=14, warn_from=now
        )
    BackupDestination.objects.filter(kind="smb").update(
        schedule="30 2 * * *", schedule_from=now, warn_after_hours=36, keep_days=90,
        secret_sealed=storage.seal_secret("a password of the share"),
        passphrase_sealed=storage.seal_kept_passphrase("a passphrase of the schedule"),
    )  # fmt: skip
    BackupDestination.objects.filter(kind="s3").update(
        schedule="0 4 * * 0", schedule_from=now, warn_after_hours=24, warn_from=now - timedelta(hours=30),
        secret_sealed=storage.seal_secret("a secret key"),
    )  # fmt: skip
    _backup("mirbad-20260310T023000Z-a00001.zip", made["smb"], hours=31, scheduled=True)
    _backup("mirbad-20260313T023000Z-a00002.zip", made["smb"], hours=7, scheduled=True)
    _backup("mirbad-20260313T093000Z-a00003.zip", None, hours=2.5, with_secrets=False, person="ada")
    detail = "192.0.2.9:/srv/backup did not answer within 60 s. Check that it is on and reachable."
    _backup(
        "mirbad-20260313T100000Z-a00004.zip", made["nfs"], hours=2, outcome="failed", person="ada", copied=False,
        error={"code": "backup_destination_failed", "detail": detail},
    )  # fmt: skip
    _backup("mirbad-20260313T110000Z-a00005.zip", made["folder"], hours=1, outcome="cancelled", person="ada", size=None)
    _open("mirbad-20260314T115900Z-a00006.zip", made["folder"])
    storage.folder()
    for row in Backup.objects.filter(outcome="succeeded"):
        storage.file_of(row).write_bytes(b"a backup")
    return {kind: row.pk for kind, row in made.items()}


def _backup(name, destination, *, hours, outcome="succeeded", copied=True, size=4_200_000, **more):
    at = clock.now() - timedelta(hours=hours)
    Backup.objects.create(
        name=name,
        destination=destination,
        destination_name=destination.name if destination else "",
        instance_id="x",
        outcome=outcome,
        bytes=size,
        sha256="a" * 64 if size else "",
        made_at=at if size else None,
        copied_at=at if destination and copied and size else None,
        finished_at=at,
        actor=ADMIN.name,
        **{"with_secrets": True, **more},
    )


def _open(name, destination):
    row = Backup.objects.create(
        name=name, destination=destination, destination_name=destination.name, instance_id="x", with_secrets=True,
        actor=ADMIN.name, person="ada",
    )  # fmt: skip
    data = backup.BackupInput(backup_id=row.pk, name=name, destination=destination.name)
    subject = ledger.Subject("backup", f"destination-{destination.pk}")
    operation = ledger.create(backup.KIND, backup.COPYING, subject, ADMIN, "Backup requested.", data)
    Backup.objects.filter(pk=row.pk).update(operation_id_text=operation.pk)
