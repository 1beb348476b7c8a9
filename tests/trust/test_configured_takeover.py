"""Takeovers by configuration: the flag file and the option."""

from datetime import timedelta

import pytest

from jobs.loops import configured_takeover
from jobs.models import Operation
from jobs.requests import takeover
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from nodes import fencing
from tests.trust.parts import run

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture
def configured(table, tmp_path, monkeypatch):
    """A function that sets what the environment would; the data folder is an empty one."""
    configured_takeover._logged.clear()

    def configure(**values):
        chosen = settings().model_copy(update={"data": tmp_path, **values})
        monkeypatch.setattr(configured_takeover, "settings", lambda: chosen)
        return tmp_path

    configure()
    return configure


def newest():
    return Operation.objects.order_by("-id").first()


def test_a_flag_file_is_one_takeover_by_config_and_is_deleted(configured, table):
    flag = configured() / "takeover"
    assert configured_takeover.look_once() == 0
    flag.touch()
    assert [configured_takeover.look_once() for _ in range(3)] == [1, 0, 0]
    assert (newest().actor, newest().input["source"]) == ("config", "flag file")
    run(table, newest())
    assert flag.exists()
    assert configured_takeover.look_once() == 0
    assert not flag.exists()
    assert configured_takeover.look_once() == 0
    assert fencing.present().epoch == 2


def test_what_fails_is_tried_again_ever_more_slowly(configured, table, log_lines):
    (configured() / "takeover").touch()
    waits = []
    for _ in range(9):
        while not configured_takeover.look_once():
            table.now += timedelta(seconds=1)
        operation = newest()
        Operation.objects.filter(pk=operation.pk).update(outcome="failed", finished_at=clock.now())
        began = table.now
        while clock.now() < configured_takeover._next_try(
            operation.input["key"], Operation.objects.get(pk=operation.pk).finished_at
        ):
            table.now += timedelta(seconds=1)
        waits.append(round((table.now - began).total_seconds()))
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert any("failed 3 time(s) in a row; next attempt in 20 s" in line for line in log_lines)


def test_an_option_with_an_id_happens_once(configured, table, log_lines):
    configured(fencing_takeover=True, fencing_takeover_id="move-2030")
    assert not configured_takeover.at_start()
    assert configured_takeover.look_once() == 1
    run(table, newest())
    assert [configured_takeover.look_once() for _ in range(3)] == [0, 0, 0]
    Operation.objects.all().delete()
    assert configured_takeover.look_once() == 0, "remembered without its operation, too"
    assert ["move-2030 already completed" in line for line in log_lines].count(True) == 1
    configured(fencing_takeover=True, fencing_takeover_id="another")
    assert configured_takeover.look_once() == 1


def test_an_option_without_an_id_happens_at_every_start(configured, table):
    configured(fencing_takeover=True)
    assert configured_takeover.look_once() == 0
    for epoch in (2, 3):
        assert configured_takeover.at_start()
        run(table, newest())
        assert configured_takeover.look_once() == 0
        assert fencing.present().epoch == epoch


def test_an_option_that_is_not_set_does_nothing(configured):
    assert not configured_takeover.at_start()
    assert configured_takeover.look_once() == 0


def test_a_wish_waits_while_a_continuation_is_open(configured, table, monkeypatch):
    (configured() / "takeover").touch()
    operation = takeover.request_by_configuration("option", "option:x")
    Operation.objects.filter(pk=operation.pk).update(kind="continuation")
    assert configured_takeover.look_once() == 0
    Operation.objects.filter(pk=operation.pk).update(finished_at=clock.now(), outcome="succeeded")
    assert configured_takeover.look_once() == 1
