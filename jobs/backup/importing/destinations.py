"""The destinations of a backup on this master. Pure.

One of a name that is here stays as it is: its password was entered for its own settings.
"""

from jobs.backup.destinations.settings import WITH_SECRET
from jobs.backup.importing.content import BackupContent
from jobs.backup.importing.plan import PlannedAction, PlannedDestination
from jobs.backup.importing.present import FleetHere
from jobs.backup.records import DestinationRecord


def planned_destinations(content: BackupContent, here: FleetHere, *, chosen: bool) -> tuple[PlannedDestination, ...]:
    """Return the fate of each destination; none when they are not chosen."""
    return tuple(_destination(record, content, here) for record in content.destinations) if chosen else ()


def _destination(record: DestinationRecord, content: BackupContent, here: FleetHere) -> PlannedDestination:
    if record.name in here.destinations:
        return PlannedDestination(record.name, PlannedAction.KEPT, "A destination of that name is here, and stays.")
    if why := here.invalid_destinations.get(record.name):
        return PlannedDestination(record.name, PlannedAction.LEFT_OUT, why)
    own = (content.destination_secrets or {}).get(record.name)
    notes = []
    if record.destination_kind in WITH_SECRET and (own is None or not own.secret):
        notes.append("Its password is not in what was read. Enter it on the page Backup.")
    off = bool(record.schedule) and content.manifest.has_secrets and content.destination_secrets is None
    if off:
        # Its backups would have no secrets from now on, and nobody asked for that.
        notes.append("Its schedule is off. Set it again, with the passphrase of its backups.")
    return PlannedDestination(record.name, PlannedAction.CREATED, " ".join(notes), schedule_off=off)
