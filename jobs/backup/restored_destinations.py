"""The destinations of a backup, written into a master that has none of their names."""

from collections.abc import Iterable, Mapping

from jobs.backup import records, storage
from jobs.backup.destinations.settings import WITH_SECRET
from jobs.models import BackupDestination
from mirbad.kernel import clock


def write(
    found: Iterable[records.DestinationRecord], secrets: Mapping[str, records.DestinationSecretsRecord]
) -> list[str]:
    """Write destinations, sealed under this master's key; return what an operator has to do, a sentence each.

    `secrets` are by the name of their destination. Schedules and ages count from now on.
    """
    notes, now = [], clock.now()
    for record in found:
        own = secrets.get(record.name)
        values = record.model_dump(exclude={"kind", "destination_kind"})
        BackupDestination.objects.create(
            **values,
            kind=record.destination_kind,
            schedule_from=now if record.schedule else None,
            warn_from=now,
            secret_sealed=storage.seal_secret(own.secret) if own is not None else None,
            passphrase_sealed=storage.seal_kept_passphrase(own.passphrase or "") if own is not None else None,
        )
        if record.destination_kind in WITH_SECRET and (own is None or not own.secret):
            notes.append(f"The password of destination {record.name} is not in the backup: enter it again.")
    return notes
