"""Maintenance windows: opened and closed by jobs, and their effect on the routing table."""

from datetime import UTC, datetime, timedelta

import pytest
import time_machine

from mirbad.kernel import conf
from mirbad.kernel.conf import BadSettings, read_settings
from mirbad.kernel.errors import Conflict, NotFound
from models_app import routing, windows
from models_app.gateway import core, loader
from models_app.models import MaintenanceWindow
from tests.gateway.test_loader import defined, node, placed, trust  # noqa: F401  a fixture

pytestmark = [pytest.mark.app, pytest.mark.django_db]

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def opened(holder="job-1", model="m", on="n1", minutes=10, **more):
    return windows.open_window(
        holder, "a benchmark", model_id=model, node_id=on, estimate=timedelta(minutes=minutes), **more
    )


@pytest.fixture
def scoped(monkeypatch):
    def choose(value):
        chosen = conf.settings().model_copy(update={"maintenance_node_scoped": value})
        monkeypatch.setattr(windows, "settings", lambda: chosen)

    return choose


@pytest.fixture
def fleet(trust):  # noqa: F811  the fixture
    for name, on, keep in (("m", "n1", False), ("other", "n1", False), ("kept", "n1", True), ("away", "n2", False)):
        defined(name, keep_serving=keep)
        placed(name, on)
    node("n1")
    node("n2")


def test_with_one_node_a_window_is_over_everything_and_with_several_over_its_node(trust, scoped):  # noqa: F811
    node("n1")
    assert opened().node_id_text == ""
    node("n2")
    assert opened("job-2").node_id_text == "n1"
    assert MaintenanceWindow.objects.get(holder="job-2").node_id_text == "n1"
    scoped("false")
    assert opened("job-3").node_id_text == ""
    scoped("true")
    assert opened("job-4", on="n9").node_id_text == "n9"


def test_a_choice_that_was_made_before_is_obeyed(trust):  # noqa: F811
    node("n1")
    assert opened(node_scoped=True).node_id_text == "n1"


@pytest.mark.parametrize("value", ["yes", "1", "True", ""])
def test_a_bad_setting_stops_the_start(value):
    with pytest.raises(BadSettings, match="MIRBAD_MAINTENANCE_NODE_SCOPED"):
        read_settings({"MIRBAD_MAINTENANCE_NODE_SCOPED": value})
    assert read_settings({}).maintenance_node_scoped is None
    with pytest.raises(BadSettings, match="MIRBAD_RECOVERY_MODE"):
        read_settings({"MIRBAD_RECOVERY_MODE": value})


def test_one_node_has_one_window_and_the_gateway_hears_of_each_change(fleet):
    before = routing.version()
    opened(node_scoped=True)
    with pytest.raises(Conflict):
        opened("job-2", node_scoped=True)
    opened("job-3", on="n2", node_scoped=True)
    assert windows.close_window("job-1")
    assert not windows.close_window("job-1")
    assert routing.version() == before + 3
    assert [window.holder for window in windows.open_windows()] == ["job-3"]


def test_opening_again_renews_the_estimate_and_nothing_else():
    with time_machine.travel(NOW, tick=False):
        opened(node_scoped=True)
        again = opened(node_scoped=False, minutes=30)
        assert (again.node_id_text, again.until) == ("n1", NOW + timedelta(minutes=30))
        assert windows.extend("job-1", timedelta(hours=1)).until == NOW + timedelta(hours=1)
    assert MaintenanceWindow.objects.count() == 1
    with pytest.raises(NotFound):
        windows.extend("job-2", timedelta(hours=1))


def test_a_window_over_everything_closes_v1_with_its_model_and_time(fleet):
    with time_machine.travel(NOW, tick=False):
        opened(node_scoped=False)
        table = loader.build()
    assert (table.closed.status, table.closed.code, table.closed.retry_after) == (503, "maintenance", 600)
    assert table.closed.message == "Mirbad is running a benchmark on m; the API is paused until ~12:10 UTC."


def test_a_window_over_a_node_pauses_its_models_but_those_that_keep_serving(fleet):
    with time_machine.travel(NOW, tick=False):
        opened(node_scoped=True, minutes=0)
        table = loader.build()
    assert table.closed is None
    assert set(table.paused) == {"m", "other"}
    refusal = core.no_route_error(table, table.models["other"])
    assert (refusal.code, refusal.retry_after) == ("maintenance", 30)
    assert "a benchmark on m on node n1" in refusal.message
    assert core.is_ready(table, table.models["kept"])
    assert core.is_ready(table, table.models["away"])
    assert not core.is_ready(table, table.models["m"])


def test_the_model_under_test_is_paused_even_when_it_would_keep_serving(fleet):
    opened(model="kept", node_scoped=True)
    assert "kept" in loader.build().paused


def test_an_estimate_that_has_passed_moves_on(fleet):
    with time_machine.travel(NOW, tick=False) as traveller:
        opened(node_scoped=False)
        traveller.shift(timedelta(hours=2))
        table = loader.build()
    assert table.closed.retry_after == 30
    assert "~14:00 UTC" in table.closed.message


def test_a_master_that_waits_for_a_backup_refuses_everything(monkeypatch, tmp_path):
    waiting = conf.settings().model_copy(update={"recovery_mode": "fleet-restore"})
    monkeypatch.setattr(windows, "settings", lambda: waiting)
    table = loader.build()
    assert (table.closed.status, table.closed.code) == (503, "maintenance")
    assert "MIRBAD_RECOVERY_MODE" in table.closed.message
    marked = conf.settings().model_copy(update={"data": tmp_path})
    monkeypatch.setattr(windows, "settings", lambda: marked)
    assert loader.build().closed is None
    (tmp_path / "recovery").touch()
    assert loader.build().closed is not None
