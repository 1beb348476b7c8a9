"""A scheduled backup by real workers and beats: one for a slot, however many of them look."""

from datetime import timedelta

import pytest
from django.db import connection

from jobs.backup import storage, verification
from jobs.models import Backup, BackupDestination
from mirbad.kernel import clock
from tests.jobs.backup.fleet import fill
from tests.jobs.processes import BEAT, WORKER, Program, running_broker
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]

KEPT = "a passphrase of the schedule"


def _two(folder, redis_url, *arguments):
    for number in range(2):
        own = folder / f"{arguments[3]}-{number}"
        own.mkdir()
        yield Program(own, redis_url, *arguments)


def test_a_slot_is_one_backup_with_two_beats_and_two_workers(tmp_path):
    fill()
    target = tmp_path / "target"
    target.mkdir()
    now = clock.now()
    BackupDestination.objects.create(
        name="disk", kind="folder", settings={"kind": "folder", "path": str(target)}, schedule="0 0 1 1 *",
        schedule_from=now - timedelta(days=800), warn_from=now, passphrase_sealed=storage.seal_kept_passphrase(KEPT),
    )  # fmt: skip
    with running_broker() as broker:
        programs = [*_two(tmp_path, broker.url, *WORKER), *_two(tmp_path, broker.url, *BEAT)]
        try:
            for program in programs:
                program.start()
            until(lambda: Backup.objects.filter(outcome="succeeded").exists(), "a scheduled backup", 120)
            # Both beats look every 20 s; a second backup would have begun with the first.
            assert Backup.objects.count() == 1
        finally:
            for program in programs:
                program.kill()
            connection.close()
    row = Backup.objects.get()
    assert (row.scheduled, row.actor) == (True, "system:backup")
    assert [entry.name for entry in target.iterdir()] == [row.name]
    assert verification.verify(target / row.name, KEPT).has_secrets
    assert all(KEPT not in program.said for program in programs)
