"""The files of backups: in the data folder's ``backups``, and their copies at destinations."""

from collections.abc import Callable, Iterable
from pathlib import Path

from jobs.backup.destinations import errand
from jobs.backup.destinations.errand import DestinationErrand
from jobs.backup.destinations.settings import ADAPTER, DestinationSettings, FolderDestination
from jobs.models import Backup, BackupDestination
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import InvalidRequest
from mirbad.kernel.seal import seal, unseal

_OF_DESTINATION = "backup-destination"
_OF_SCHEDULE = "backup-schedule-passphrase"
_OF_BACKUP = "backup-passphrase"


def folder() -> Path:
    """Return the folder of backups, which is made if need be (mode 0700)."""
    path = settings().data / "backups"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def file_of(backup: Backup) -> Path:
    """Return the path of the master's own file of a backup; it need not be there."""
    return settings().data / "backups" / backup.name


def settings_of(destination: BackupDestination) -> DestinationSettings:
    """Return the typed settings of a destination. Raises ValidationError for those of another version."""
    return ADAPTER.validate_python(destination.settings)


def require_outside(found: DestinationSettings) -> None:
    """Raise InvalidRequest for a folder inside of the data folder."""
    if isinstance(found, FolderDestination) and Path(found.path).resolve().is_relative_to(settings().data.resolve()):
        text = "This folder is inside of the data folder and would be lost with it. Choose a folder on another disk."
        problem = {"code": "destination_setting_invalid", "message": text, "field": "path"}
        raise InvalidRequest(text, problems=[problem])


def seal_secret(secret: str) -> bytes | None:
    """Return the password or secret key of a destination as its row keeps it."""
    return seal(secret.encode(), _OF_DESTINATION) if secret else None


def seal_kept_passphrase(passphrase: str) -> bytes | None:
    """Return the passphrase of scheduled backups as the row of a destination keeps it."""
    return seal(passphrase.encode(), _OF_SCHEDULE) if passphrase else None


def seal_passphrase(passphrase: str | None) -> bytes | None:
    """Return the passphrase of one backup as its row keeps it while the backup is made."""
    return seal(passphrase.encode(), _OF_BACKUP) if passphrase is not None else None


def secret_of(destination: BackupDestination) -> str:
    """Return the password or secret key, empty without one. Raises SealBroken."""
    sealed = destination.secret_sealed
    return unseal(bytes(sealed), _OF_DESTINATION).decode() if sealed is not None else ""


def kept_passphrase_of(destination: BackupDestination) -> str | None:
    """Return the passphrase of scheduled backups, None without one. Raises SealBroken."""
    sealed = destination.passphrase_sealed
    return unseal(bytes(sealed), _OF_SCHEDULE).decode() if sealed is not None else None


def passphrase_of(backup: Backup) -> str | None:
    """Return the passphrase of a backup that is being made, None afterwards. Raises SealBroken."""
    sealed = backup.passphrase_sealed
    return unseal(bytes(sealed), _OF_BACKUP).decode() if sealed is not None else None


def copy(backup: Backup, destination: BackupDestination, is_cancelled: Callable[[], bool]) -> None:
    """Copy the file of a backup to its destination, where it appears whole or not at all.

    Raises BackupDestinationFailed, ErrandCancelled.
    """
    chosen = _errand(
        destination, "put", file=str(file_of(backup).absolute()), names=(backup.name,), sha256=backup.sha256
    )
    errand.run(chosen, seconds=errand.put_seconds(backup.bytes or 0), is_cancelled=is_cancelled)


def remove_copies(destination: BackupDestination, names: Iterable[str]) -> None:
    """Delete the copies `names` at a destination. Raises BackupDestinationFailed; then some may be deleted."""
    errand.run(_errand(destination, "remove", names=tuple(names)))


def remove_file(backup: Backup) -> None:
    """Delete the master's own file of a backup, and what interrupted writes left of it."""
    path = file_of(backup)
    path.unlink(missing_ok=True)
    remove_parts(backup.name)


def remove_parts(name: str) -> None:
    """Delete what interrupted writes left of the file `name`."""
    if (settings().data / "backups").is_dir():
        for part in (settings().data / "backups").glob(f".{name}.part-*"):
            part.unlink(missing_ok=True)


def try_out(chosen: DestinationSettings, secret: str) -> None:
    """Write, read and delete a small file at a destination. Raises BackupDestinationFailed."""
    errand.run(DestinationErrand(verb="try", settings=chosen, secret=secret, mount_point=_mount_point()))


def _errand(destination: BackupDestination, verb: str, **more: object) -> DestinationErrand:
    values = {"verb": verb, "settings": settings_of(destination), "secret": secret_of(destination)}
    return DestinationErrand.model_validate({**values, "mount_point": _mount_point(), **more})


def _mount_point() -> str:
    """Return an empty folder. Mounts on it are seen by the process of the errand alone."""
    path = settings().data / "run" / "backup-mount"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(path.absolute())
