"""Ends of engines: recorded once each, bounded, without secrets, and shown on every surface."""

import re
from datetime import timedelta
from typing import Any

import pytest

from agent.wire.instances import BrokenRequest
from audit.models import AuditLine
from mirbad.kernel import clock
from models_app import exits, metrics, running
from models_app.gateway import core, loader
from models_app.gateway.table import RouteState
from models_app.models import EngineExit, ModelDefinition, Placement
from tests.gateway.test_dashboard import EXPRESSIONS
from tests.models_app.test_running import status, view
from tests.models_app.things import node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]

DEATH: dict[str, Any] = {
    "reason": "The engine was ended by SIGSEGV (exit code 139).",
    "reason_code": "engine_exited",
    "exit_code": 139,
    "exit_signal": "SIGSEGV",
    "started_at": "2026-01-01T00:00:00Z",
    "exited_at": "2026-01-01T01:00:00Z",
    "ready_at": "2026-01-01T00:00:09Z",
}


@pytest.fixture
def placement() -> Placement:
    node("pc-1", boot_id="boot-1")
    return placed()


def ends(placement: Placement, seq: int, **fields: Any) -> None:
    running.observe("pc-1", status(seq, view(placement, "exited", **DEATH | fields)))


def test_one_end_is_one_row_one_audit_line_and_one_count_however_often_it_is_reported(placement) -> None:
    ends(placement, 1)
    running.mark_unreachable("pc-1")
    ends(placement, 2)
    running.observe_instance("pc-1", "boot-2", 3, view(placement, "exited", **DEATH))
    row = EngineExit.objects.get()
    assert (row.exit_code, row.signal, row.was_ready, row.node_id_text) == (139, "SIGSEGV", True, "pc-1")
    line = AuditLine.objects.get(action="model.engine-exit")
    assert (line.actor, line.result, line.error_code) == ("system:engine", "failed", "engine_exited")
    assert Placement.objects.get().exits == 1
    ends(placement, 4, operation_id="op-2:starting", started_at="2026-01-01T02:00:00Z")
    assert (EngineExit.objects.count(), Placement.objects.get().exits) == (2, 2)


@pytest.mark.parametrize(
    "fields", [{"stop_requested": True}, {"started_at": None}], ids=["stopped on request", "never started"]
)
def test_what_is_no_death_is_not_recorded(placement, fields) -> None:
    ends(placement, 1, **fields)
    assert (EngineExit.objects.count(), Placement.objects.get().exits) == (0, 0)


def test_secrets_and_values_that_no_column_holds_are_left_out(placement) -> None:
    ends(
        placement,
        1,
        reason="password: hunter2hunter2 " + "x" * 3000,
        reason_code="c" * 200,
        exit_code=10**12,
        started_at="s" * 500,
        exited_at="e" * 500,
        operation_id="o" * 500,
        last_lines=("token hf_abcdefghijklmnop",),
        broken_requests=tuple(BrokenRequest(request_id=f"req-{n}", key_id=2**62) for n in range(64)),
    )
    row = EngineExit.objects.get()
    assert ("hunter2" in row.reason, row.exit_code, row.last_lines) == (False, None, ["token ***"])
    (described,) = exits.of_model("tiny", 10)
    assert described.requests.startswith("Requests in progress: req-0 of key id 4611686018427387904, req-1")
    assert described.requests.endswith("and 59 more.")


def test_the_rows_of_a_model_are_bounded(placement, monkeypatch) -> None:
    monkeypatch.setattr(exits, "KEPT", 3)
    for number in range(1, 8):
        ends(placement, number, operation_id=f"op-{number}:starting")
    assert [row.run[:4] for row in EngineExit.objects.all()] == ["op-7", "op-6", "op-5"]


@pytest.mark.parametrize(
    ("columns", "policy", "state", "retry"),
    [
        ({"desired": "running", "observed": "failed"}, "on-failure", RouteState.RESTARTING, 20),
        ({"desired": "running", "observed": "failed", "start_seconds": None}, "on-failure", RouteState.RESTARTING, 5),
        ({"desired": "running", "observed": "failed"}, "never", RouteState.DOWN, 30),
        ({"desired": "stopped", "observed": "failed"}, "on-failure", RouteState.STOPPED, None),
        ({"desired": "stopped", "observed": "stopped"}, "on-failure", RouteState.STOPPED, None),
        ({"desired": "running", "observed": "unhealthy"}, "on-failure", RouteState.DOWN, 30),
        ({"desired": "running", "observed": "starting"}, "on-failure", RouteState.STARTING, 20),
        ({"desired": "running", "observed": "starting", "start_seconds": None}, "on-failure", RouteState.STARTING, 5),
    ],
)
def test_retry_after_is_the_time_after_which_a_repeat_may_succeed(placement, columns, policy, state, retry) -> None:
    ModelDefinition.objects.update(restart_policy=policy)
    Placement.objects.update(**{"start_seconds": 20.0} | columns)
    table = loader.build()
    model = table.models["tiny"]
    assert model.routes[0].state is state
    serving = _serving(table)
    error = core.no_route_error(serving, model)
    assert (error.status, error.code, error.retry_after) == (503, "model_not_ready", retry)
    assert (error.should_retry is False) == (retry is None)


def _serving(table: Any) -> Any:
    from dataclasses import replace

    return replace(table, endpoints={"pc-1": object()})


def test_retry_after_counts_the_pause_and_what_has_passed_of_the_start(placement) -> None:
    Placement.objects.update(desired="running", observed="failed", start_seconds=20.0)
    Placement.objects.update(restart_at=clock.now() + timedelta(seconds=30))
    assert loader.build().models["tiny"].routes[0].retry_seconds == 50
    began = (clock.now() - timedelta(seconds=15)).isoformat()
    Placement.objects.update(observed="starting", observed_view={"startedAt": began})
    assert loader.build().models["tiny"].routes[0].retry_seconds == 5
    # A time that cannot be read is none; one that lies long ago is a start that may end at any moment.
    times = {"2026-99-99": 20, "": 20, "2020-01-01T00:00:00": 20, "2999-01-01T00:00:00Z": 20, "2020-01-01T00:00:00Z": 5}
    for text, seconds in times.items():
        Placement.objects.update(observed_view={"startedAt": text})
        assert loader.build().models["tiny"].routes[0].retry_seconds == seconds, text
    for odd in (None, 7, [], {}):
        Placement.objects.update(observed_view={"startedAt": odd})
        assert loader.build().models["tiny"].routes[0].retry_seconds == 20, odd


def test_the_state_of_a_model_and_its_ends_are_in_the_metrics(placement) -> None:
    ends(placement, 1)
    Placement.objects.update(desired="running")
    text = metrics.render().decode()
    assert 'mirbad_model_state{model="tiny",state="failed"} 1.0' in text
    assert 'mirbad_model_state{model="tiny",state="ready"} 0.0' in text
    assert 'mirbad_model_engine_exits_total{model="tiny",node="pc-1"} 1.0' in text
    assert 'mirbad_model_restarting{model="tiny",node="pc-1"} 1.0' in text
    assert 'mirbad_model_halted{model="tiny",node="pc-1"} 0.0' in text
    asked = {name for expression in EXPRESSIONS for name in re.findall(r"mirbad_model_\w+", expression)}
    assert asked == {name for name in asked if f"\n{name}{{" in text}
    assert len(asked) == 2
