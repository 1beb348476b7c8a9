"""Sealing and the JSONL files: nothing lost, nothing doubled, tampering found."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import time_machine
from django.core.management import CommandError, call_command

from audit import files, log, seal, verification
from audit.files import AuditJournal
from audit.models import AuditLine, ChainState
from mirbad.kernel import actor
from tests.waiting import until

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def journal(tmp_path, monkeypatch):
    settings = seal.settings().model_copy(update={"data": tmp_path})
    monkeypatch.setattr(seal, "settings", lambda: settings)
    monkeypatch.setattr(verification, "settings", lambda: settings)
    return AuditJournal(tmp_path / "audit")


def write(count, start=0):
    for number in range(start, start + count):
        log.record("job", actor.CONFIG, detail=f"line {number}")


def seal_all():
    while seal.seal_once():
        pass


CUT = (
    "The audit files ended at line {}, though line {} had been written. The missing lines were written again from the "
    "database. Was the folder restored?"
)


def details(journal):
    return [document["detail"] for document in journal.documents()]


def test_every_line_lands_in_the_file_of_its_month_in_order(journal):
    with time_machine.travel(datetime(2027, 1, 31, 23, 59, 59, tzinfo=UTC), tick=False):
        write(3)
    with time_machine.travel(datetime(2027, 2, 1, tzinfo=UTC), tick=False):
        write(2, 3)
    seal_all()
    assert [file.path.name for file in journal.files()] == ["2027-01.jsonl", "2027-02.jsonl"]
    assert details(journal) == [f"line {n}" for n in range(5)]
    assert verification.verify().holds


def test_a_line_carries_the_published_fields(journal):
    log.record("model.start", actor.api("192.0.2.7"), model_id="m", node_id="pc-1", result="accepted")
    seal_all()
    (document,) = journal.documents()
    assert set(document) == {
        "seq", "time", "actor", "action", "nodeId", "modelId", "operationId", "target", "result", "errorCode",
        "detail", "hash",
    }  # fmt: skip
    assert (document["actor"], document["nodeId"], document["errorCode"]) == ("api:192.0.2.7", "pc-1", None)


def test_a_line_of_last_month_that_comes_late_goes_to_the_newest_file(journal):
    with time_machine.travel(datetime(2027, 2, 1, tzinfo=UTC), tick=False):
        write(1)
    seal_all()
    with time_machine.travel(datetime(2027, 1, 31, tzinfo=UTC), tick=False):
        write(1, 1)
    seal_all()
    assert [file.path.name for file in journal.files()] == ["2027-02.jsonl"]
    assert details(journal) == ["line 0", "line 1"]


def test_a_full_file_is_continued_in_the_next(journal, monkeypatch):
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 2000)
    write(30)
    seal_all()
    names = [file.path.name for file in journal.files()]
    month = f"{datetime.now(UTC):%Y-%m}"
    assert names[:3] == [f"{month}.jsonl", f"{month}.1.jsonl", f"{month}.2.jsonl"]
    assert all(file.size_bytes <= 2000 for file in journal.files())
    assert details(journal) == [f"line {n}" for n in range(30)]
    assert verification.verify().holds


def test_a_line_torn_by_a_crash_is_written_again_whole(journal):
    write(5)
    seal_all()
    newest = journal.files()[-1].path
    newest.write_bytes(newest.read_bytes()[:-40])
    seal_all()
    assert details(journal) == [*(f"line {n}" for n in range(5)), CUT.format(4, 5)]
    assert verification.verify().holds


def test_a_kill_between_writing_and_noting_doubles_nothing(journal):
    write(5)
    seal_all()
    ChainState.objects.update(written_seq=0)
    write(2, 5)
    seal_all()
    assert details(journal) == [f"line {n}" for n in range(7)]


def test_a_lower_id_that_is_committed_late_is_not_lost(journal):
    write(3)
    late = AuditLine.objects.order_by("id").first()
    values = {field.attname: getattr(late, field.attname) for field in AuditLine._meta.fields}
    late.delete()
    seal_all()
    AuditLine.objects.create(**values)
    seal_all()
    assert details(journal) == ["line 1", "line 2", "line 0"]
    assert verification.verify().holds


def test_two_writers_do_not_write_at_once(journal):
    write(3)
    with journal.locked() as mine:
        assert mine
        seal_all()
        assert details(journal) == []
    seal_all()
    assert len(details(journal)) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: AuditLine.objects.filter(seq=3).update(actor="admin:000000000000"), "line 3 was changed"),
        (lambda: AuditLine.objects.filter(seq=3).delete(), "line 3 is missing"),
        (lambda: AuditLine.objects.filter(seq=6).delete(), "ends at line 5"),
    ],
)
def test_tampering_with_the_rows_is_found(change, words):
    write(6)
    seal_all()
    change()
    verdict = verification.verify()
    assert not verdict.holds
    assert words in verdict.in_database.reason


def test_rewriting_the_whole_chain_is_found_by_the_files(journal):
    write(6)
    seal_all()
    AuditLine.objects.filter(seq=3).update(actor="admin:000000000000")
    AuditLine.objects.update(seq=None, digest="")
    ChainState.objects.all().delete()
    seal._extend()
    verdict = verification.verify()
    assert verdict.in_database is None
    assert "line 3 differs" in verdict.in_files.reason


def test_tampering_with_a_file_is_found(journal):
    write(6)
    seal_all()
    path = journal.files()[-1].path
    path.write_text(path.read_text().replace("line 3", "line X"))
    assert verification.verify().in_files.seq == 4


def test_cutting_off_the_end_of_the_files_is_found(journal):
    write(6)
    seal_all()
    path = journal.files()[-1].path
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    assert verification.verify().in_files.seq == 5


def test_the_command_says_whether_the_log_is_whole(capsys):
    write(4)
    seal_all()
    write(2, 4)
    call_command("audit_verify")
    assert "4 lines, unbroken; 0 signed heads, 0 witnesses agree, 2 lines sealed now" in capsys.readouterr().out
    call_command("audit_verify")
    assert "6 lines, unbroken" in capsys.readouterr().out
    AuditLine.objects.filter(seq=2).update(detail="nothing happened")
    with pytest.raises(CommandError):
        call_command("audit_verify")


def test_files_of_another_history_are_left_alone_and_a_new_file_is_begun(journal):
    write(4)
    seal_all()
    AuditLine.objects.all().delete()
    ChainState.objects.all().delete()
    write(2, 100)
    seal_all()
    assert details(journal)[:-1] == [*(f"line {n}" for n in range(4)), "line 100", "line 101"]
    assert "had another end than this log" in details(journal)[-1]
    assert len(journal.files()) == 2


def cut_lines(journal, count):
    path = journal.files()[-1].path
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-count]))


def test_the_command_looks_before_it_seals_and_repairs_nothing_that_was_changed(journal, capsys):
    write(6)
    seal_all()
    write(1, 6)
    cut_lines(journal, 2)
    before = journal.files()[-1].path.read_bytes()
    for _ in range(2):
        with pytest.raises(CommandError, match="Nothing was sealed or repaired"):
            call_command("audit_verify")
        assert "files: the files end at line 4, but line 6 was written" in capsys.readouterr().err
    assert journal.files()[-1].path.read_bytes() == before
    assert AuditLine.objects.filter(seq=None).count() == 1


@pytest.mark.parametrize("also", [0, 1])
@pytest.mark.parametrize("cut", [1, 3, 6])
def test_files_that_were_cut_are_completed_and_a_line_says_so_for_good(journal, cut, also):
    write(6)
    seal_all()
    cut_lines(journal, cut)
    if cut == 6:
        journal.files()[-1].path.unlink()
    write(also, 6)
    seal_all()
    said = AuditLine.objects.get(action="audit")
    assert (said.result, said.error_code, said.detail) == ("failed", "audit_files_cut", CUT.format(6 - cut, 6))
    assert details(journal)[: 6 + also] == [f"line {n}" for n in range(6 + also)]
    assert verification.verify().holds
    seal_all()
    assert AuditLine.objects.filter(action="audit").count() == 1


def test_a_kill_before_the_files_are_completed_does_not_hide_the_cut(journal, monkeypatch):
    write(6)
    seal_all()
    cut_lines(journal, 2)

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(AuditJournal, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            seal_all()
    assert AuditLine.objects.filter(error_code="audit_files_cut").exists()
    seal_all()
    assert verification.verify().holds


_WRITER = """
import json, sys
from pathlib import Path
from audit.files import JournalEntry, AuditJournal
journal = AuditJournal(Path(sys.argv[1]))
with journal.locked() as mine:
    assert mine
    journal.repair()
    start = (journal.last() or {"seq": 0})["seq"]
    print(start, flush=True)
    for seq in range(start + 1, start + 100_000):
        journal.append([JournalEntry("2027-01", {"seq": seq, "detail": "x" * 3000})])
"""


@pytest.mark.faults
def test_kill_nine_at_any_moment_neither_loses_nor_doubles_a_line(journal, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path / "audit")], stdout=subprocess.PIPE, env=environment
        )
        process.stdout.readline()
        before = sum(file.size_bytes for file in journal.files())
        until(
            lambda before=before: sum(file.size_bytes for file in journal.files()) >= before + 100_000,
            "more lines",
            every=0.003,
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    with journal.locked():
        journal.repair()
    sequence = [document["seq"] for document in journal.documents()]
    assert sequence == list(range(1, len(sequence) + 1))
    assert len(sequence) > 100


def test_files_are_for_the_master_alone(journal):
    write(1)
    seal_all()
    assert journal.files()[0].path.stat().st_mode & 0o777 == 0o600
    assert json.loads(journal.files()[0].path.read_text())["seq"] == 1
