"""An import whose process is killed at random times, each in a fork: ``python -m … FOLDER KILLS MODELS``."""

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mirbad.settings")
django.setup()

from django.core.management import call_command  # noqa: E402 - Django first
from django.db import connection  # noqa: E402

from audit.models import AuditLine  # noqa: E402
from jobs.backup import making  # noqa: E402
from jobs.backup.importing import content  # noqa: E402
from jobs.backup.importing.choices import ImportChoices  # noqa: E402
from jobs.models import Operation  # noqa: E402
from jobs.requests import restore  # noqa: E402
from mirbad.kernel.errors import Conflict  # noqa: E402
from models_app.models import ApiKey, Hold, ModelDefinition, ModelSource, Placement  # noqa: E402
from tests.jobs.backup.fleet import PASSPHRASE, fill  # noqa: E402
from tests.jobs.backup.importing.fleets import forget_models  # noqa: E402
from tests.models_app.things import PERSON  # noqa: E402

TABLES = (ModelDefinition, Placement, ModelSource, ApiKey, Hold, Operation)


def rows() -> tuple[int, ...]:
    """Count what an import writes; and its lines of the audit log."""
    counted = [table.objects.count() for table in TABLES]
    return (*counted, AuditLine.objects.filter(action="restore", result="accepted").count())


def empty() -> None:
    """Delete what an import wrote."""
    forget_models()
    AuditLine.objects.filter(action="restore").delete()


def forked(read: content.BackupContent, digest: str) -> int:
    """Begin the import in a process of its own; return its id."""
    connection.close()
    child = os.fork()
    if child:
        return child
    code = 3
    with contextlib.suppress(Conflict):
        restore.request(read, ImportChoices(), digest, PERSON)
        code = 0
    os._exit(code)


def main(folder: Path, kills: int, models: int) -> None:
    """Kill, count, and let the next try complete it."""
    call_command("migrate", verbosity=0)
    fill(models=models)
    making.create(folder / "fleet.backup", PASSPHRASE, PERSON)
    forget_models()
    empty()
    read = content.read(folder / "fleet.backup", PASSPHRASE)
    digest = restore.preview(read, ImportChoices()).digest
    chance, nothing = random.Random(12), rows()
    began = time.monotonic()
    os.waitpid(forked(read, digest), 0)
    seconds, everything = time.monotonic() - began, rows()
    found = {"kills": kills, "nothing": 0, "everything": 0, "wrong": [], "seconds": round(seconds, 2)}
    for _ in range(kills):
        empty()
        child, at = forked(read, digest), time.monotonic() + chance.uniform(0, 1.05 * seconds)
        while time.monotonic() < at:
            signal.sigtimedwait((), max(0.0, at - time.monotonic()))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        left = rows()
        found["nothing"] += left == nothing
        found["everything"] += left == everything
        status = os.waitstatus_to_exitcode(os.waitpid(forked(read, digest), 0)[1])
        after = rows()
        if left not in (nothing, everything) or status != 0 or after != everything:
            found["wrong"].append([left, status, after])
    found["rows"] = everything
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
