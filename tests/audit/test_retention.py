"""Retention: 12 months, 256 MiB, and a chain that still holds."""

from datetime import UTC, datetime

import pytest
import time_machine

from audit import files, log, retention, seal, verification
from audit.files import AuditJournal
from audit.models import AuditLine
from mirbad.kernel import actor

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def journal(tmp_path, monkeypatch):
    settings = seal.settings().model_copy(update={"data": tmp_path})
    monkeypatch.setattr(seal, "settings", lambda: settings)
    monkeypatch.setattr(retention, "settings", lambda: settings)
    monkeypatch.setattr(verification, "settings", lambda: settings)
    return AuditJournal(tmp_path / "audit")


def write_at(*moments):
    for moment in moments:
        with time_machine.travel(moment, tick=False):
            log.record("job", actor.CONFIG, detail=moment.isoformat())
    while seal.seal_once():
        pass


def prune_at(moment):
    with time_machine.travel(moment, tick=False):
        while retention.prune_once():
            pass


def test_lines_and_files_older_than_twelve_months_go_and_the_chain_still_holds(journal):
    write_at(*(datetime(2026, month, 5, tzinfo=UTC) for month in range(1, 13)), datetime(2027, 2, 5, tzinfo=UTC))
    prune_at(datetime(2027, 2, 10, tzinfo=UTC))
    assert journal.files()[0].path.name == "2026-02.jsonl"
    assert AuditLine.objects.order_by("seq").first().time.month == 2
    assert verification.verify().holds
    write_at(datetime(2027, 2, 11, tzinfo=UTC))
    assert verification.verify().holds


def test_the_oldest_files_go_when_all_together_are_too_large(journal, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 1000)
    monkeypatch.setattr(retention, "MAX_BYTES", 3000)
    write_at(*(datetime(2027, 2, 1, 0, minute, tzinfo=UTC) for minute in range(30)))
    prune_at(datetime(2027, 2, 2, tzinfo=UTC))
    assert sum(file.size_bytes for file in journal.files()) <= 3000
    assert AuditLine.objects.count() == 30
    assert verification.verify().holds


def test_the_newest_file_stays_however_old_it_is(journal):
    write_at(datetime(2024, 1, 5, tzinfo=UTC))
    prune_at(datetime(2027, 2, 10, tzinfo=UTC))
    assert [file.path.name for file in journal.files()] == ["2024-01.jsonl"]
    write_at(datetime(2027, 2, 10, tzinfo=UTC))
    assert verification.verify().holds


def test_a_line_that_is_not_in_the_files_yet_is_kept(journal):
    with time_machine.travel(datetime(2024, 1, 5, tzinfo=UTC), tick=False):
        log.record("job", actor.CONFIG)
    prune_at(datetime(2027, 2, 10, tzinfo=UTC))
    assert AuditLine.objects.count() == 1
