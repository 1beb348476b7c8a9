"""The installation of a backup on an empty master, which a kill at any moment leaves whole or undone.

All files of an installation are written to a staging folder inside of the transaction of its rows. Afterwards they are
moved to their places, the record of the installation last; the marker of the recovery mode goes then. Whoever finds a
staging folder later asks the database whether the rows are there, and finishes the installation or removes the folder.
"""

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import structlog
from django.db import transaction

from agent.common.files import sync_dir, write_text
from jobs.backup import recovery
from jobs.backup.recovery import Recovered
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.recovery_mode import MARKER, RECORD, STAGING
from nodes.models import MasterIdentity

log = structlog.get_logger(__name__)

TAKEOVER_FLAG: Final = "takeover"
STARTER_FOLDER: Final = "bootstrap"


@dataclass(frozen=True, slots=True)
class InstalledRecovery:
    """The recovery that this master was made by, as its record says."""

    backup: str
    made_at: datetime
    instance_id: str
    installed_at: datetime
    notes: tuple[str, ...]


def install(path: Path, passphrase: str, asked_by: str, name: str = "") -> Recovered:
    """Install the backup `path` on this empty master. `name` is the file's name for people.

    Raises MasterNotEmpty, BackupUnsuitable, OSError; the master is as empty as before then.
    """
    settle()
    data, name = settings().data, name or path.name
    done = recovery.recover(path, passphrase, lambda recovered: _stage(data, name, recovered), asked_by, name=name)
    _finish(data)
    return done


def settle() -> bool:
    """Finish or undo an installation that was interrupted; return whether there was one.

    Call it before anything is made: an identity in the database is how the rows of an installation are known.
    """
    data = settings().data
    if not (data / STAGING).is_dir():
        return False
    with transaction.atomic():
        recovery.one_at_a_time()
        is_whole = MasterIdentity.objects.exists()
        if not is_whole:
            shutil.rmtree(data / STAGING)
    if is_whole:
        _finish(data)
    log.warning("an installation that was interrupted was settled", finished=is_whole)
    return True


def installed() -> InstalledRecovery | None:
    """Return the recovery of this data folder, None when there was none."""
    try:
        found = json.loads((settings().data / RECORD).read_text())
        return InstalledRecovery(
            backup=found["backup"],
            made_at=datetime.fromisoformat(found["madeAt"]),
            instance_id=found["instanceId"],
            installed_at=datetime.fromisoformat(found["installedAt"]),
            notes=tuple(found["notes"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stage(data: Path, name: str, recovered: Recovered) -> None:
    manifest = recovered.manifest
    record: dict[str, Any] = {
        "backup": name,
        "madeAt": manifest.created_at.isoformat(),
        "instanceId": manifest.instance_id,
        "installedAt": clock.now().isoformat(),
        "counts": manifest.counts,
        "notes": list(recovered.notes),
    }
    staging = data / STAGING
    (staging / STARTER_FOLDER).mkdir(mode=0o700, parents=True)
    staging.chmod(0o700)
    write_text(staging / TAKEOVER_FLAG, "")
    # The starter model is as it was in the backup: stopped, deleted, or running.
    write_text(staging / STARTER_FOLDER / f"starter-{settings().starter_model}", "made\n")
    write_text(staging / RECORD, json.dumps(record, indent=1))
    sync_dir(data)


def _finish(data: Path) -> None:
    """Move what is staged to its place. May be repeated after an interruption at any point."""
    staging = data / STAGING
    (data / STARTER_FOLDER).mkdir(mode=0o700, exist_ok=True)
    starter = f"{STARTER_FOLDER}/starter-{settings().starter_model}"
    for part in (TAKEOVER_FLAG, starter, RECORD):
        with suppress(FileNotFoundError):
            (staging / part).replace(data / part)
    sync_dir(data)
    (data / MARKER).unlink(missing_ok=True)
    sync_dir(data)
    shutil.rmtree(staging, ignore_errors=True)
