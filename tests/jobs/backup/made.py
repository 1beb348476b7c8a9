"""A destination of backups, good ones that it has, and the files in a folder."""

from datetime import timedelta

from jobs.backup import storage
from jobs.models import Backup
from jobs.requests import backup_destinations
from jobs.requests.backup_destinations import DestinationInput
from mirbad.kernel import clock
from tests.models_app.things import PERSON

SECRET = "canary-of-a-password"


def made(target, **more):
    values = {"name": "disk", "kind": "folder", "settings": {"path": str(target)}, **more}
    return backup_destinations.create(DestinationInput(**values), PERSON)


def files(folder):
    return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []


def good(destination, count):
    now = clock.now()
    found = []
    for number in range(count):
        name = f"mirbad-old-{number}.zip"
        at = now - timedelta(days=count - number)
        found.append(
            Backup.objects.create(
                name=name, operation_id_text="op", destination=destination, instance_id="x", with_secrets=True,
                outcome="succeeded", made_at=at, finished_at=at, copied_at=at,
            )
        )  # fmt: skip
        storage.folder()
        storage.file_of(found[-1]).write_text("old")
    return found
