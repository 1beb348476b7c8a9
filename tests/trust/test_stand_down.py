"""A master that stands down: it commands nobody, and nothing but an owner has it take over again."""

import pytest

from audit.models import AuditLine
from jobs.kinds import takeover as kind
from jobs.loops import configured_takeover
from jobs.requests import stand_down, takeover
from mirbad.kernel import actor
from mirbad.kernel.actor import CONFIG
from nodes import fencing
from nodes.errors import ConfirmationRequired, MasterFenced
from nodes.link import health
from nodes.models import MasterIdentity
from tests.nodes.parts import OPERATOR
from tests.trust.parts import copy, run

pytestmark = [pytest.mark.app, pytest.mark.django_db]

OWNER = actor.admin("a session", "ada", "owner", "192.0.2.7")


def test_it_commands_nobody_and_the_other_master_has_the_nodes(table):
    name = copy(table)
    run(table, takeover.request(takeover.PHRASE, OPERATOR))
    assert stand_down.request(stand_down.PHRASE, OWNER)
    assert fencing.fenced_reason().startswith("This master stands down, as ada (owner) decided.")
    for node_id in "abc":
        with pytest.raises(MasterFenced):
            health.connect(node_id)
    table.act("m0")
    run(table, takeover.request(takeover.PHRASE, OPERATOR))
    assert all(machine.held == fencing.present() for machine in table.machines.values())
    table.act(name)
    assert fencing.stands_down()
    line = AuditLine.objects.get(action="fencing.stand-down")
    assert (line.person, line.role, line.result, line.detail) == (
        "ada", "owner", "succeeded", "Commanded under epoch 2.",
    )  # fmt: skip


def test_only_an_owner_has_it_return(table):
    stand_down.request(stand_down.PHRASE, OWNER)
    for attempt in (
        lambda: takeover.request(takeover.PHRASE, OPERATOR),
        lambda: takeover.request_by_configuration("option", "start:x"),
        lambda: takeover.request_by_configuration("flag file", "flag:1:1"),
        lambda: takeover.resume("a", "", 1, "a", OPERATOR),
        lambda: takeover.resume("a", "", 1, "a", CONFIG),
    ):
        with pytest.raises(MasterFenced, match="Only an owner takes over again"):
            attempt()
    assert run(table, takeover.request(takeover.PHRASE, OWNER)).outcome == "succeeded"
    assert (fencing.stands_down(), fencing.is_fenced()) == (False, False)
    assert run(table, takeover.request(takeover.PHRASE, OPERATOR)).outcome == "succeeded"


@pytest.mark.parametrize("configured", ["flag", "option", "option with an id"])
def test_no_flag_file_and_no_setting_is_looked_at(table, tmp_path, monkeypatch, configured):
    chosen = configured_takeover.settings().model_copy(
        update={
            "data": tmp_path,
            "fencing_takeover": configured != "flag",
            "fencing_takeover_id": "once" if configured.endswith("id") else "",
        }
    )
    monkeypatch.setattr(configured_takeover, "settings", lambda: chosen)
    if configured == "flag":
        (tmp_path / configured_takeover.FLAG).touch()
    stand_down.request(stand_down.PHRASE, OWNER)
    before = AuditLine.objects.count()
    assert (configured_takeover.look_once(), configured_takeover.at_start()) == (0, False)
    assert not configured_takeover.is_coming()
    assert AuditLine.objects.count() == before, "no refusal every five seconds"


@pytest.mark.parametrize("stage", [kind.PROBING, kind.STORING, kind.CLAIMING])
def test_an_open_takeover_ends_at_any_stage(table, stage):
    table.restore(table.dump())
    operation = takeover.request(takeover.PHRASE, OPERATOR)
    while operation.stage != stage:
        table.step(operation.pk)
        operation.refresh_from_db()
    stand_down.request(stand_down.PHRASE, OWNER)
    operation.refresh_from_db()
    assert operation.outcome == "cancelled"
    table.step(operation.pk)
    assert fencing.stands_down()
    assert operation.pk in AuditLine.objects.get(action="fencing.stand-down").detail


def test_a_takeover_that_is_storing_its_epoch_at_that_moment_does_not_undo_it(table, monkeypatch):
    operation = takeover.request(takeover.PHRASE, OPERATOR)
    table.step(operation.pk)
    real = fencing.advance

    def late(*arguments, **named):
        stand_down.request(stand_down.PHRASE, OWNER)
        return real(*arguments, **named)

    monkeypatch.setattr(fencing, "advance", late)
    table.step(operation.pk)
    assert fencing.stands_down()
    assert fencing.present().epoch == 1


def test_the_phrase_is_asked_for_and_a_second_time_changes_nothing(table):
    for wrong in ("", "yes", "the previous master is stopped"):
        with pytest.raises(ConfirmationRequired):
            stand_down.request(wrong, OWNER)
    assert not fencing.is_fenced()
    assert stand_down.request(f" {stand_down.PHRASE} ", OWNER)
    claim = fencing.present()
    assert not stand_down.request(stand_down.PHRASE, OWNER)
    assert fencing.present() == claim
    assert AuditLine.objects.filter(action="fencing.stand-down", result="succeeded").count() == 1


def test_a_takeover_that_was_to_end_it_is_ended_by_another_one(table):
    stand_down.request(stand_down.PHRASE, OWNER)
    operation = takeover.request(takeover.PHRASE, OWNER)
    assert stand_down.request(stand_down.PHRASE, OWNER)
    operation.refresh_from_db()
    assert (operation.outcome, fencing.stands_down()) == ("cancelled", True)
    assert AuditLine.objects.filter(action="fencing.stand-down", result="succeeded").count() == 2


def test_data_that_is_copied_from_it_needs_a_takeover_of_its_own(table):
    stand_down.request(stand_down.PHRASE, OWNER)
    copy(table)
    assert (fencing.stands_down(), fencing.is_fenced()) == (False, True)
    assert MasterIdentity.objects.get().stood_down_at is None
    assert run(table, takeover.request(takeover.PHRASE, OPERATOR)).outcome == "succeeded"
