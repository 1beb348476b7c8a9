"""The data folder: private, writable, and of one run at a time."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mirbad.up import folder
from mirbad.up.errors import CannotStart

pytestmark = pytest.mark.unit


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_fresh_folder_is_private_in_all_its_parts(tmp_path):
    data = tmp_path / "deep" / "data"
    folder.prepare(data)
    assert mode(data) == 0o700
    assert {part.name: mode(part) for part in data.iterdir()} == dict.fromkeys(
        ("secrets", "run", "agent", "logs", "audit", "static", "uploads"), 0o700
    )


def test_an_open_folder_is_closed_to_others(tmp_path):
    tmp_path.chmod(0o755)
    folder.prepare(tmp_path)
    assert mode(tmp_path) == 0o700


WRITERS = {
    "a process of the master": "from mirbad.kernel import logs; logs.configure('x')",
    "make up": "from mirbad.up.__main__ import main; main()",
    "manage.py": "import sys; sys.argv = ['manage.py', 'version']; import manage; manage.main()",
}


@pytest.mark.parametrize("start", WRITERS.values(), ids=WRITERS)
def test_whatever_a_process_writes_is_private_in_spite_of_a_generous_umask(start, tmp_path):
    code = (
        f"import contextlib, pathlib\nwith contextlib.suppress(SystemExit):\n    {start}\n"
        "import sqlite3, subprocess\nbase = pathlib.Path('made'); (base / 'deep').mkdir(parents=True)\n"
        "(base / 'file').write_text('x')\n"
        "rows = sqlite3.connect(base / 'rows.sqlite3'); rows.execute('PRAGMA journal_mode=WAL')\n"
        "rows.execute('CREATE TABLE t (x)'); rows.commit()\n"
        "subprocess.run(['touch', base / 'of-a-child'], check=True)\n"
        "print(*[f'{path.stat().st_mode & 0o777:o}' for path in sorted(base.rglob('*'))])"
    )
    environ = {"MIRBAD_DATA": "/dev/null/none", "PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd())}
    run = ["sh", "-c", 'umask 000; exec "$0" -c "$1"', sys.executable, code]
    made = subprocess.run(run, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    assert made.stdout.splitlines()[-1] == "700 600 600 600 600 600"


def test_a_folder_of_an_earlier_run_is_tightened_and_reported_but_for_its_models(tmp_path):
    data = tmp_path / "data"
    folder.prepare(data)
    (data / "agent" / "models" / "m").mkdir(mode=0o755)
    wide = {
        "mirbad.sqlite3": 0o644, "logs/web.log": 0o664, "run/up.json": 0o666, "secrets/api-key": 0o640, "own": 0o755,
        "agent/agent.json": 0o604, "audit/a.jsonl": 0o444,
    }  # fmt: skip
    for name, bits in wide.items():
        (data / name).write_text("")
        (data / name).chmod(bits)
    (data / "agent" / "state").mkdir()
    (data / "agent" / "state").chmod(0o750)
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    (data / "link").symlink_to(outside)
    found = folder.tighten(data, exposed=folder.prepare(data))
    assert {str(path.relative_to(data)) for path in found.closed} == {*wide, "agent/state"}
    assert {name: mode(data / name) for name in wide} == {name: bits & 0o700 for name, bits in wide.items()}
    assert mode(outside) == 0o644
    assert mode(data / "agent" / "models" / "m") & 0o055
    (sentence,) = found.sentences()
    assert sentence.startswith("Took the rights of other users from")
    assert "and 7 more" in sentence
    assert folder.tighten(data, exposed=folder.prepare(data)).sentences() == []


def test_a_data_folder_that_others_could_open_is_a_reason_to_replace_secrets(tmp_path):
    folder.prepare(tmp_path)
    tmp_path.chmod(0o750)
    (sentence,) = folder.tighten(tmp_path, exposed=folder.prepare(tmp_path)).sentences()
    assert "Replace its secrets" in sentence


def test_an_entry_whose_mode_cannot_be_changed_is_named_with_the_command(tmp_path, monkeypatch):
    folder.prepare(tmp_path)
    (tmp_path / "logs" / "x").write_text("")
    (tmp_path / "logs" / "x").chmod(0o644)
    monkeypatch.setattr(folder.Path, "chmod", lambda *_: (_ for _ in ()).throw(PermissionError(1, "not ours")))
    (sentence,) = folder.tighten(tmp_path, exposed=False).sentences()
    assert "logs/x" in sentence
    assert "chmod -R go=" in sentence


def test_a_file_where_the_folder_should_be_is_refused_in_one_line(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(CannotStart, match="set MIRBAD_DATA to another folder") as caught:
        folder.prepare(tmp_path / "data")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a ;b", "a #b", "a\nb"])
def test_a_name_that_would_begin_a_comment_is_refused(tmp_path, name):
    with pytest.raises(CannotStart, match="Rename it"):
        folder.prepare(tmp_path / name)


def test_secrets_are_made_once_and_only_the_owner_reads_them(tmp_path):
    folder.prepare(tmp_path)
    folder.ensure_secret_key(tmp_path, "", database_is_ours=True)
    folder.ensure_admin_password(tmp_path, None)
    made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert set(made) == {"secret-key", "admin-password"}
    assert all(mode(path) == 0o600 for path in (tmp_path / "secrets").iterdir())
    folder.ensure_secret_key(tmp_path, "", database_is_ours=True)
    folder.ensure_admin_password(tmp_path, None)
    assert made == {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}


def test_secrets_that_are_given_are_not_stored(tmp_path):
    folder.prepare(tmp_path)
    folder.ensure_secret_key(tmp_path, "given", database_is_ours=True)
    folder.ensure_admin_password(tmp_path, "")
    assert not list((tmp_path / "secrets").iterdir())


def test_a_lost_secret_key_is_never_replaced_beside_existing_data(tmp_path):
    folder.prepare(tmp_path)
    (tmp_path / "mirbad.sqlite3").write_bytes(b"rows")
    with pytest.raises(CannotStart, match="secret-key is missing"):
        folder.ensure_secret_key(tmp_path, "", database_is_ours=True)


def test_a_second_process_is_refused_and_told_who_holds_the_folder(tmp_path):
    folder.prepare(tmp_path)
    code = (
        "import sys; from pathlib import Path; from mirbad.up.folder import Lock;"
        "lock = Lock(Path(sys.argv[1])); lock.take(); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        assert folder.is_running(tmp_path)
        with pytest.raises(CannotStart, match=rf"\(process {holder.pid}\)"):
            folder.Lock(tmp_path).take()
        holder.kill()
        holder.communicate()
    assert not folder.is_running(tmp_path)
    lock = folder.Lock(tmp_path)
    lock.take()
    assert (tmp_path / "run" / "up.lock").read_text() == f"{os.getpid()}\n"


def test_the_runtime_folder_is_short_private_and_the_same_each_time(tmp_path, monkeypatch):
    deep = tmp_path / ("long" * 20) / ("path" * 20)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    path = folder.runtime_dir(deep)
    try:
        assert path == folder.runtime_dir(deep)
        assert mode(path) == 0o700
        assert len(os.fsencode(path / "supervisord.sock")) < 108
    finally:
        path.rmdir()


def test_a_runtime_folder_that_others_may_enter_is_not_used(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    path = folder.runtime_dir(tmp_path)
    path.chmod(0o755)
    try:
        with pytest.raises(CannotStart, match="TMPDIR"):
            folder.runtime_dir(tmp_path)
    finally:
        path.rmdir()


def test_facts_of_a_run_are_read_back_and_forgotten(tmp_path):
    folder.prepare(tmp_path)
    facts = folder.RunFacts(1, "2026-01-01T00:00:00+00:00", "/tmp/x", "", "http://127.0.0.1:8080")
    folder.write_facts(tmp_path, facts)
    assert folder.read_facts(tmp_path) == facts
    folder.forget_facts(tmp_path)
    assert folder.read_facts(tmp_path) is None


def test_a_folder_that_holds_other_things_is_refused_and_left_open(tmp_path):
    (tmp_path / "holiday.jpg").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(CannotStart, match=r"contains other files \(holiday.jpg"):
        folder.prepare(tmp_path)
    assert mode(tmp_path) == 0o755
    assert [entry.name for entry in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_fresh_disk_and_a_folder_that_was_prepared_by_hand_are_taken(tmp_path):
    (tmp_path / "lost+found").mkdir()
    folder.prepare(tmp_path)
    other = tmp_path / "other"
    (other / "secrets").mkdir(parents=True)
    (other / "notes.txt").touch()
    folder.prepare(other)
    assert mode(other) == 0o700
