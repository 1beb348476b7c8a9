"""An empty master becomes that of a backup, whole or not at all, on SQLite and on PostgreSQL."""

import io
import shutil
import stat
from pathlib import Path

import pytest
from django.contrib.auth import authenticate
from django.core.management import CommandError, call_command

from audit import checkpoints, log, seal, verification
from audit.models import AuditLine, ChainState, LogKey
from jobs.backup import making, recovery, sealed
from jobs.errors import BackupUnsuitable, MasterNotEmpty
from mirbad.accounts.models import AdminToken
from mirbad.kernel import actor, clock
from mirbad.kernel.conf import settings
from models_app import keys
from models_app.models import ApiKey, ModelDefinition, Placement, RunningIntent
from models_app.registry import specs
from nodes import fencing
from nodes.models import Authority, JoinToken, MasterIdentity, Node
from nodes.pki import authority, store
from tests.jobs.backup.fleet import CANARY, PASSPHRASE, fill, read
from tests.models_app.things import PERSON, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)


@pytest.fixture
def secrets():
    made = fill()
    log.record("job", actor.CONFIG, detail="before the backup")
    while seal.seal_once():
        pass
    assert checkpoints.sign_once() is not None
    return made


@pytest.fixture
def backup(tmp_path, secrets):
    """A backup of a fleet, and an empty master."""
    path = tmp_path / "fleet.backup"
    making.create(path, PASSPHRASE, PERSON)
    call_command("flush", verbosity=0, interactive=False)
    shutil.rmtree(settings().data / "audit", ignore_errors=True)
    return path


@pytest.fixture
def flag(tmp_path):
    return tmp_path / "takeover"


def recover(path, flag):
    return recovery.recover(path, PASSPHRASE, lambda _: flag.touch(mode=0o600), "somebody")


def is_empty() -> bool:
    rows = (Node, ModelDefinition, Placement, ApiKey, AdminToken, Authority, MasterIdentity, AuditLine, LogKey)
    return not any(row.objects.exists() for row in rows)


def test_the_master_is_that_of_the_backup(backup, flag, secrets):
    done = recover(backup, flag)
    assert done.notes == ()
    assert stat.S_IMODE(flag.stat().st_mode) == 0o600
    again = backup.with_name("again.backup")
    making.create(again, PASSPHRASE, PERSON)
    before, after = read(backup), read(again)
    for kind in (*before.keys() - {"binding"}, *after.keys() - {"binding"}):
        assert after[kind] == before[kind], kind
    line = AuditLine.objects.get(action="restore")
    assert (line.actor, line.target) == ("system:restore", "fleet.backup")
    assert line.detail.endswith("asked by somebody")


def test_secrets_open_under_the_key_of_this_master(backup, flag, secrets, monkeypatch):
    other = settings().model_copy(update={"secret_key": "another secret key of another master, long enough"})
    monkeypatch.setattr("mirbad.kernel.seal.settings", lambda: other)
    recover(backup, flag)
    assert specs.unseal_env(ModelDefinition.objects.get(pk="m1")) == {"HF_TOKEN": f"{CANARY}-1"}
    assert store.issuer()
    assert b"PRIVATE KEY" in store.client_identity(store.master()).key_pem
    assert ApiKey.objects.get().digest == keys.digest(secrets["key"])
    assert authenticate(username="ada", password="a password of ada") is not None


def test_it_commands_nobody_until_a_takeover(backup, flag):
    old = read(backup)["master"][0]
    recover(backup, flag)
    authority.ensure()
    row = MasterIdentity.objects.get()
    assert row.epoch == old.epoch
    assert row.instance_id != old.instance_id
    assert fencing.is_fenced()


def test_models_that_ran_are_wanted_again_and_their_engines_known(backup, flag):
    ids = {part.id for model in read(backup)["model"] for part in model.placements}
    recover(backup, flag)
    assert set(Placement.objects.values_list("pk", flat=True)) == ids
    intent = RunningIntent.objects.get()
    assert intent.placement.model_id == "m0"
    assert intent.node_uid == str(Node.objects.get(pk="pc-1").uid)
    assert dict(Placement.objects.values_list("model_id", "desired")) == {
        "m0": "running", "m1": "stopped", "m2": "stopped"
    }  # fmt: skip


def test_the_audit_log_goes_on_behind_that_of_the_backup(backup, flag):
    head = read(backup)["audit"][0]
    recover(backup, flag)
    state = ChainState.objects.get()
    assert (state.base_seq, state.base_digest, state.head_seq) == (head.head_seq, head.head_digest, head.head_seq)
    assert LogKey.objects.get().public == head.public
    while seal.seal_once():
        pass
    assert list(AuditLine.objects.order_by("seq").values_list("seq", "action")) == [(head.head_seq + 1, "restore")]
    assert verification.verify().breaks == ()


@pytest.mark.parametrize(
    "made",
    [
        lambda: Node.objects.create(pk="pc-9", address="192.0.2.9"),
        lambda: keys.create("mine", actor=PERSON),
        authority.ensure,
        lambda: JoinToken.objects.create(
            id="0" * 16, digest="0" * 64, purpose="join", node_id_text="pc-9", expires_at=clock.now(),
            used_at=clock.now(), created_by="x",
        ),
    ],
)  # fmt: skip
def test_a_master_with_something_of_its_own_is_refused_and_kept(backup, flag, made):
    made()
    with pytest.raises(MasterNotEmpty, match="This master is not empty: it has ") as refused:
        recover(backup, flag)
    assert refused.value.problems
    assert not flag.exists()
    assert not ModelDefinition.objects.exists()


def test_a_bootstrap_node_that_did_not_join_is_nothing(backup, flag):
    Node.objects.create(pk="local", address="127.0.0.1", is_bootstrap=True)
    recover(backup, flag)
    assert set(Node.objects.values_list("pk", flat=True)) == {"pc-1", "gone"}


def test_a_backup_that_cannot_rebuild_a_master_is_refused(tmp_path, secrets, flag, monkeypatch):
    without = settings().model_copy(update={"backup_include_ca": False})
    monkeypatch.setattr("jobs.backup.collect.settings", lambda: without)
    making.create(tmp_path / "no-ca", PASSPHRASE, PERSON)
    making.create(tmp_path / "no-secrets", None, PERSON)
    call_command("flush", verbosity=0, interactive=False)
    with pytest.raises(BackupUnsuitable, match="has no key of the CA"):
        recover(tmp_path / "no-ca", flag)
    with pytest.raises(BackupUnsuitable, match="made without secrets"):
        recover(tmp_path / "no-secrets", flag)
    assert is_empty()


class Dead(BaseException):
    """The process ended here."""


@pytest.mark.parametrize(
    "place",
    [
        "jobs.backup.recovery._write_master",
        "jobs.backup.recovery._write_nodes",
        "jobs.backup.recovery._write_models",
        "jobs.backup.recovery._write_people",
        "jobs.backup.recovery.routing.bump",
        "jobs.backup.recovery.audit_log.record",
        "jobs.backup.recovery._insert_with_dates",
        "jobs.backup.recovery.intents.ask",
        "pathlib.Path.touch",
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_whatever_interrupts_it_leaves_an_empty_master_that_can_be_recovered(backup, flag, monkeypatch, place, after):
    module, _, name = place.rpartition(".")
    with monkeypatch.context() as patch:
        import pkgutil

        real = getattr(pkgutil.resolve_name(module), name)

        def dies(*words, **named):
            if after:
                real(*words, **named)
            raise Dead

        patch.setattr(place, dies)
        with pytest.raises(Dead):
            recover(backup, flag)
    assert is_empty()
    recover(backup, flag)
    assert ModelDefinition.objects.count() == 3


def test_what_is_left_to_do_is_said(tmp_path, secrets, flag):
    long_ago = clock.now().replace(year=2020)
    Node.objects.get(pk="pc-1").pins.update(cert_not_after=long_ago)
    Node.objects.create(pk="pc-2", address="192.0.2.9", lifecycle="pending")
    making.create(tmp_path / "fleet", PASSPHRASE, PERSON)
    call_command("flush", verbosity=0, interactive=False)
    notes = recover(tmp_path / "fleet", flag).notes
    assert sorted(note.partition(":")[0] for note in notes) == [
        "Node pc-2 was waiting for its approval",
        f"The certificate of node pc-1 expired on {long_ago:%Y-%m-%d}",
    ]


def test_two_replicas_come_back_as_they_were(tmp_path, secrets, flag):
    placed("last", "pc-1")
    Placement.objects.filter(model_id="last").update(generation=7, desired_config_hash="c" * 64, routed=False)
    before = Placement.objects.filter(model_id="last").values("pk", "replica", "generation", "routed").get()
    making.create(tmp_path / "fleet", PASSPHRASE, PERSON)
    call_command("flush", verbosity=0, interactive=False)
    recover(tmp_path / "fleet", flag)
    assert Placement.objects.filter(model_id="last").values("pk", "replica", "generation", "routed").get() == before


def test_the_command_asks_for_a_sentence_first(backup, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda _: "yes")
    with pytest.raises(CommandError, match=r"Nothing was changed\. Stop the previous master"):
        call_command("recover", str(backup))
    with pytest.raises(CommandError, match="Nothing was changed"):
        call_command("recover", str(backup), confirm="no", stdout=io.StringIO())
    assert is_empty()


@pytest.fixture
def empty_folder(tmp_path, monkeypatch):
    """The data folder of the command; the database is that of the test."""
    monkeypatch.setenv("MIRBAD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("MIRBAD_SECRET_KEY", settings().secret_key)
    settings.cache_clear()
    yield tmp_path / "data"
    monkeypatch.undo()
    settings.cache_clear()


def recover_by_command(backup, monkeypatch, passphrase=PASSPHRASE):
    out = io.StringIO()
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{passphrase}\n"))
    words = {"confirm": "the previous master is stopped", "passphrase_file": Path("-")}
    call_command("recover", str(backup), stdout=out, **words)
    return out.getvalue()


def test_the_command_prepares_the_folder_and_leaves_the_starter_model_as_it_was(backup, empty_folder, monkeypatch):
    said = recover_by_command(backup, monkeypatch)
    assert "Recovered 2 nodes, 3 models, 1 API keys and 1 people" in said
    assert "Start it with make up" in said
    assert stat.S_IMODE(empty_folder.stat().st_mode) == 0o700
    assert (empty_folder / "takeover").exists()
    assert (empty_folder / "bootstrap" / f"starter-{settings().starter_model}").read_text() == "made\n"
    assert ModelDefinition.objects.count() == 3


@pytest.mark.parametrize(
    ("passphrase", "said"), [("another passphrase", "the passphrase is another one"), ("", "the passphrase is another")]
)
def test_the_command_with_another_passphrase_changes_nothing(backup, empty_folder, monkeypatch, passphrase, said):
    with pytest.raises(CommandError, match=said):
        recover_by_command(backup, monkeypatch, passphrase)
    assert is_empty()
    assert not (empty_folder / "takeover").exists()
    assert not (empty_folder / "bootstrap").exists()


def test_the_command_names_a_file_that_is_not_there(tmp_path, empty_folder, monkeypatch):
    with pytest.raises(CommandError, match=r"nothing\.backup: No such file"):
        recover_by_command(tmp_path / "nothing.backup", monkeypatch)
    assert not empty_folder.exists()
