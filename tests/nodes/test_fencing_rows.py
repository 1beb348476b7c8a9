"""The claim of a master and each way in which it is lost, moved and bound, column by column."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pytest
from django.db import DatabaseError

from agent.wire.fence import Claim
from mirbad.kernel import clock
from mirbad.kernel.errors import Unavailable
from nodes import fencing
from nodes.errors import MasterFenced
from nodes.models import MasterIdentity, Node

pytestmark = [pytest.mark.app, pytest.mark.django_db]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OURS = Claim(epoch=3, instance_id="a" * 32)
MADE = "f" * 32


@pytest.fixture(autouse=True)
def told(monkeypatch, django_capture_on_commit_callbacks) -> list[tuple[str, ...]]:
    """Topics that pages were told of."""
    told: list[tuple[str, ...]] = []
    monkeypatch.setattr(clock, "now", lambda: NOW)
    monkeypatch.setattr(fencing, "new_instance_id", lambda: MADE)
    monkeypatch.setattr(fencing.invalidations, "changed", lambda *topic: told.append(topic))
    return told


@pytest.fixture
def identity() -> MasterIdentity:
    return MasterIdentity.objects.create(
        epoch=OURS.epoch, instance_id=OURS.instance_id, bound_to="here", claimed_by="op-1", takeover_id="op-0"
    )


def changed(act) -> tuple[Any, dict[str, Any]]:
    """Return what `act` returns, and the columns of the identity that it changed."""
    before = MasterIdentity.objects.values().get()
    answer = act()
    after = MasterIdentity.objects.values().get()
    return answer, {name: value for name, value in after.items() if value != before[name]}


def test_before_there_is_an_identity_nothing_is_claimed_and_nothing_is_fenced() -> None:
    for ask in (fencing.claim, fencing.present):
        with pytest.raises(Unavailable, match="Start the master once"):
            ask()
    assert (fencing.is_fenced(), fencing.fenced_reason(), fencing.bound_to(), fencing.last_takeover()) == (
        False, "", "", "",
    )  # fmt: skip
    assert not fencing.is_current(OURS)
    assert not fencing.fence("x")
    assert fencing.advance(OURS, 4, "op-2") is None
    assert not fencing.bind_instance()
    assert not fencing.is_done("once")
    fencing.note_done("once")
    fencing.require_unfenced()
    assert not MasterIdentity.objects.exists()


def test_a_claim_is_that_of_the_row(identity) -> None:
    assert (fencing.claim(), fencing.present()) == (OURS, OURS)
    assert fencing.is_current(OURS)
    assert not fencing.is_current(OURS.model_copy(update={"epoch": 4}))
    assert not fencing.is_current(OURS.model_copy(update={"instance_id": MADE}))
    assert (fencing.bound_to(), fencing.last_takeover()) == ("here", "op-0")


def test_a_fenced_master_keeps_its_claim_and_commands_nobody(
    identity, told, django_capture_on_commit_callbacks
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        answer, columns = changed(lambda: fencing.fence("Another is obeyed. " + "x" * 400))
    reason = ("Another is obeyed. " + "x" * 400)[:300]
    assert (answer, columns) == (True, {"fenced_reason": reason, "updated_at": NOW})
    assert told == [("nodes",)]
    assert (fencing.is_fenced(), fencing.fenced_reason(), fencing.present()) == (True, reason, OURS)
    for act in (fencing.claim, fencing.require_unfenced):
        with pytest.raises(MasterFenced, match="Another is obeyed"):
            act()
    assert not fencing.is_current(OURS)


def test_a_second_refusal_is_not_new(identity, told, django_capture_on_commit_callbacks) -> None:
    fencing.fence("the first reason")
    with django_capture_on_commit_callbacks(execute=True):
        assert changed(lambda: fencing.fence("the second reason")) == (False, {})
    assert told == []


@pytest.mark.parametrize(
    ("refused", "is_new"),
    [
        (OURS, True),
        (OURS.model_copy(update={"epoch": 2}), False),
        (OURS.model_copy(update={"instance_id": MADE}), False),
    ],
)
def test_a_late_refusal_of_a_former_claim_fences_nobody(identity, refused, is_new) -> None:
    assert fencing.fence("x", refused) is is_new
    assert fencing.is_fenced() is is_new


@pytest.mark.parametrize("takeover", [True, False])
def test_an_advance_moves_to_a_new_claim(identity, told, takeover, django_capture_on_commit_callbacks) -> None:
    fencing.fence("Another is obeyed.")
    with django_capture_on_commit_callbacks(execute=True):
        answer, columns = changed(lambda: fencing.advance(OURS, 9, "op-2", takeover=takeover))
    assert answer == Claim(epoch=9, instance_id=MADE)
    also = {"takeover_id": "op-2"} if takeover else {}
    assert columns == {"epoch": 9, "instance_id": MADE, "fenced_reason": "", "claimed_by": "op-2"} | also
    assert told == [("nodes",)]
    assert fencing.claim() == answer
    assert (fencing.made_by("op-2"), fencing.made_by("op-1")) == (answer, None)


def test_an_advance_is_a_takeover_unless_it_is_said_otherwise(identity) -> None:
    fencing.advance(OURS, 9, "op-2")
    assert fencing.last_takeover() == "op-2"


@pytest.mark.parametrize("since", [{"epoch": 2}, {"instance_id": MADE}])
def test_an_advance_from_a_claim_that_is_no_longer_ours_changes_nothing(identity, since) -> None:
    assert changed(lambda: fencing.advance(OURS.model_copy(update=since), 9, "op-2")) == (None, {})


@pytest.mark.parametrize(
    ("takeover_epoch", "held", "blocked"),
    [
        (None, Claim(epoch=9, instance_id=MADE), False),
        (3, None, False),
        (3, Claim(epoch=2, instance_id=MADE), False),
        (3, Claim(epoch=3, instance_id=MADE), True),
        (3, Claim(epoch=4, instance_id=OURS.instance_id), True),
        (3, OURS, False),
        (2, OURS, False),
    ],
)
def test_a_node_that_returned_under_another_master_stays_blocked(takeover_epoch, held, blocked) -> None:
    assert fencing.returned_under_another_master(takeover_epoch, held, OURS) is blocked


def test_one_time_ids_are_kept_once_and_the_newest_fifty(identity) -> None:
    for number in range(60):
        fencing.note_done(f"once-{number}")
    fencing.note_done("once-59")
    identity.refresh_from_db()
    assert identity.takeovers_done == [f"once-{number}" for number in range(10, 60)]
    assert fencing.is_done("once-10")
    assert not fencing.is_done("once-9")
    assert changed(lambda: fencing.note_done("once-60"))[1].keys() == {"takeovers_done"}


@pytest.mark.parametrize("approved", [True, False])
def test_data_of_another_installation_gets_a_new_id_and_is_fenced_when_it_has_nodes(
    identity, monkeypatch, approved
) -> None:
    Node.objects.create(id="pc-1", address="192.0.2.1", lifecycle="approved" if approved else "pending")
    monkeypatch.setattr(fencing, "installation", lambda: "elsewhere")
    answer, columns = changed(fencing.bind_instance)
    assert answer is True
    reason = columns.pop("fenced_reason", "")
    assert bool(reason) is approved
    assert columns == {"bound_to": "elsewhere", "instance_id": MADE, "claimed_by": "", "updated_at": NOW}
    assert changed(fencing.bind_instance) == (False, {})


def test_of_processes_that_start_together_one_writes_the_new_id(identity, monkeypatch) -> None:
    def installation() -> str:
        MasterIdentity.objects.update(bound_to="elsewhere", instance_id="b" * 32)
        return "elsewhere"

    monkeypatch.setattr(fencing, "installation", installation)
    assert fencing.bind_instance() is False
    assert MasterIdentity.objects.get().instance_id == "b" * 32


def test_a_copy_of_the_folder_is_another_installation(tmp_path, monkeypatch) -> None:
    machine = tmp_path / "machine-id"
    machine.write_text("abc\n")
    monkeypatch.setattr(fencing, "_MACHINE_ID_FILES", (tmp_path / "none", machine))

    class Here:
        data = tmp_path / "x" / ".." / "data"

    monkeypatch.setattr(fencing, "settings", Here)
    assert fencing._folder_identity() == f"folder:abc:{(tmp_path / 'data').resolve()}"
    machine.unlink()
    assert fencing._folder_identity() == f"folder::{(tmp_path / 'data').resolve()}"


class FakeConnection:
    """A PostgreSQL of which `row` is known, or whose control data is hidden."""

    vendor = "postgresql"
    settings_dict = {"HOST": "db", "PORT": "5432", "NAME": "mirbad"}

    def __init__(self, row: tuple[str, int] | None) -> None:
        self.row = row
        self.asked = ""

    def cursor(self) -> "FakeConnection":
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, statement: str) -> None:
        self.asked = statement
        if self.row is None:
            raise DatabaseError("permission denied")

    def fetchone(self) -> tuple[str, int] | None:
        return self.row


@pytest.mark.parametrize(
    ("row", "text"), [(("721", 5), "database:721:5"), (None, "database:db:5432:mirbad")], ids=["known", "hidden"]
)
def test_a_database_is_known_by_its_cluster_or_else_by_its_address(monkeypatch, row, text) -> None:
    database = FakeConnection(row)
    monkeypatch.setattr(fencing, "connection", database)
    assert fencing._database_identity() == text
    assert "pg_control_system" in database.asked
    monkeypatch.setattr(fencing, "_database_identity", lambda: "of the database")
    monkeypatch.setattr(fencing, "_folder_identity", lambda: "of the folder")
    of_database = fencing.installation()
    database.vendor = "sqlite"
    of_folder = fencing.installation()
    assert {len(of_database), len(of_folder)} == {64}
    assert of_database != of_folder


def test_the_machine_id_is_read_where_systemd_and_dbus_keep_it() -> None:
    assert (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")) == fencing._MACHINE_ID_FILES


def test_instance_ids_are_long_and_never_the_same(monkeypatch) -> None:
    monkeypatch.undo()
    made = {fencing.new_instance_id() for _ in range(20)}
    assert len(made) == 20
    assert {len(one) for one in made} == {32}


def test_a_report_within_reach_is_believed_without_asking_the_database(identity, django_assert_num_queries) -> None:
    highest = Claim(epoch=OURS.epoch + fencing.EPOCH_REACH, instance_id=MADE)
    with django_assert_num_queries(0):
        assert fencing.disbelief(highest, OURS) == ""
        assert fencing.disbelief(None, OURS) == ""
    beyond = Claim(epoch=highest.epoch + 1, instance_id=MADE)
    with django_assert_num_queries(1):
        assert f"reports epoch {beyond.epoch}, far above this master's 3." in fencing.disbelief(beyond, OURS)
