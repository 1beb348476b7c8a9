"""Kinds describe themselves: their data survives versions, and every page text comes from them."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from agent.wire.downloads import DownloadSpec
from jobs.base import OperationData, StoredFailure
from jobs.kinds import KINDS, evacuate, launch, move, revoke, takeover
from jobs.models import Operation
from jobs.pages.contexts.rows import names_of_kinds, row
from mirbad.kernel import clock

pytestmark = pytest.mark.unit

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ISO = "2026-01-02T03:04:05+00:00"
SPEC = {
    "folder": "tiny",
    "repository": "acme/tiny",
    "commit": "0" * 40,
    "files": [{"path": "tiny.gguf", "sizeBytes": 9, "digest": f"sha256:{'0' * 64}"}],
    "endpoint": None,
    "allowPickle": False,
}
TARGET = "6f1c1f0e-95e5-4d8f-a2b9-1d4f0f1f5a11"


def operation(kind: str, stage: str, **columns: Any) -> Operation:
    now = clock.now()
    return Operation(id="op-1", kind=kind, stage=stage, actor="x", created_at=now, next_run_at=now, **columns)


def words(made: Operation) -> list[str]:
    return [mark.words for mark in row(made).stages]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_kind_names_itself_its_stages_and_its_audit_line(kind) -> None:
    assert kind.title
    assert kind.title[0].isupper()
    names = [stage.name for stage in kind.stages]
    assert len(set(names)) == len(names)
    assert not kind.stages[0].aside
    assert kind.audit.action


def test_every_kind_is_offered_in_the_filter_by_its_title() -> None:
    titles = dict(names_of_kinds())
    assert titles.keys() == KINDS.keys()
    assert titles["download"] == "Download"
    assert list(titles.values()) == sorted(titles.values())


STORED: list[tuple[type[OperationData], dict[str, Any], OperationData]] = [
    (
        launch.LaunchInput,
        {"generation": 3, "force": True, "restart": False, "shards": ["op-a", "op-b"]},
        launch.LaunchInput(generation=3, force=True, restart=False, shards=("op-a", "op-b")),
    ),
    (
        launch.LaunchState,
        {
            "turns": {"starting": 2},
            "download": SPEC,
            "seen": ISO,
            "configHash": "abc",
            "why": {"code": "start_timeout", "detail": "Too late.", "lines": ["x"]},
        },
        launch.LaunchState(
            turns={"starting": 2},
            download=DownloadSpec.model_validate(SPEC),
            answered_at=AT,
            config_hash="abc",
            why=StoredFailure(code="start_timeout", detail="Too late.", lines=("x",)),
        ),
    ),
    (
        move.MoveInput,
        {
            "mode": "handover",
            "source": "",
            "sourceNode": "",
            "target": TARGET,
            "gpuUuids": ["GPU-1"],
            "generation": 2,
            "running": True,
            "specs": {"0": SPEC},
            "onBehalfOf": "op-9",
        },
        move.MoveInput(
            mode="handover",
            source=None,
            source_node="",
            target=UUID(TARGET),
            gpu_uuids=("GPU-1",),
            generation=2,
            running=True,
            specs={0: DownloadSpec.model_validate(SPEC)},
            on_behalf_of="op-9",
        ),
    ),
    (
        move.MoveState,
        {"away-downloading": ISO, "away-undoing": None, "stopSince": ISO, "spec": None, "ordered": ISO},
        move.MoveState(away={"downloading": AT, "undoing": None}, stop_since=AT, spec=None, ordered=AT),
    ),
    (
        revoke.RevokeState,
        {"since": {TARGET: ISO}, "unplaced": ["tiny"]},
        revoke.RevokeState(since={TARGET: AT}, unplaced=("tiny",)),
    ),
    (
        takeover.TakeoverInput,
        {"installation": "x", "source": "option", "oneTimeId": "once", "agentEpoch": 7},
        takeover.TakeoverInput(installation="x", source="option", one_time_id="once", agent_epoch=7),
    ),
    (
        takeover.TakeoverState,
        {"since": {"epoch": 3, "instanceId": "a" * 32}, "left": ["a"], "silent": []},
        takeover.TakeoverState(since={"epoch": 3, "instance_id": "a" * 32}, left=("a",), silent=()),
    ),
    (
        evacuate.EvacuateInput,
        {"wasDraining": True, "models": ["a"]},
        evacuate.EvacuateInput(was_draining=True, models=("a",)),
    ),
]


@pytest.mark.parametrize(("model", "stored", "typed"), STORED, ids=lambda value: getattr(value, "__name__", ""))
def test_data_is_stored_under_the_keys_that_rows_have_and_read_back(model, stored, typed) -> None:
    assert typed.to_json() == stored
    assert model.model_validate(stored) == typed
    assert model.model_validate({**stored, "ofALaterVersion": 1}) == typed, "unknown keys are ignored"


def test_a_change_names_fields_that_exist_with_values_that_fit() -> None:
    state = launch.LaunchState()
    assert state.changed(up=True).to_json() == {"up": True}
    with pytest.raises(TypeError, match="has no field ready"):
        state.changed(ready=True)
    with pytest.raises(ValueError, match="valid boolean"):
        state.changed(up="perhaps")


def moving(mode: str, stage: str, *, source: str = TARGET, node: str = "pc-1", running: bool = True) -> Operation:
    data = {"mode": mode, "source": source, "sourceNode": node, "target": TARGET, "running": running}
    return operation("move", stage, node_id_text="pc-2", model_id_text="tiny", input=data)


def test_a_move_shows_only_stages_that_happen() -> None:
    download = "Download the weights"
    assert words(moving("handover", "downloading")) == [
        download, "Start it on pc-2", "Ready on pc-2", "Switch to pc-2", "Finish requests on pc-1", "Stop it on pc-1",
        "Done",
    ]  # fmt: skip
    assert words(moving("stop-first", "downloading")) == [
        download, "Stop it on pc-1", "Stopped on pc-1", "Switch to pc-2", "Start it on pc-2", "Done",
    ]  # fmt: skip
    assert words(moving("stop-first", "downloading", running=False)) == [
        download, "Stop it on pc-1", "Stopped on pc-1", "Switch to pc-2", "Done",
    ]  # fmt: skip
    nowhere = moving("stop-first", "downloading", source="", node="", running=False)
    assert words(nowhere) == [download, "Place it on pc-2", "Done"], "nothing stops, nothing starts"
    assert row(nowhere).where == "to pc-2"


def test_a_stage_that_a_move_without_a_source_only_passes_is_shown_as_its_commit() -> None:
    shown = row(moving("stop-first", "source-stopped", source="", node="", running=False))
    assert [(mark.words, mark.mark) for mark in shown.stages] == [
        ("Download the weights", "done"), ("Place it on pc-2", "now"), ("Done", "ahead"),
    ]  # fmt: skip


def test_the_stages_of_a_revoke_say_that_models_are_stopped_and_unplaced() -> None:
    made = operation("revoke", "stopping", node_id_text="pc-1", target_id="pc-1")
    assert words(made) == ["Stop and unplace models", "Revoke the keys", "Done"]
    assert (row(made).title, row(made).target, row(made).where) == ("Revoke", "pc-1", "")


def test_a_stage_of_the_way_back_stands_alone() -> None:
    assert words(moving("handover", "undoing")) == ["Undo the move"]
    assert words(operation("launch", "cancelling")) == ["Stop the engine"]


def test_an_ended_operation_has_every_mark_done_and_one_end() -> None:
    made = operation("stop", "done", outcome="succeeded", finished_at=clock.now(), node_id_text="pc-1")
    assert [(mark.words, mark.mark) for mark in row(made).stages] == [("Stop the engine", "done"), ("Done", "done")]


@pytest.mark.parametrize("columns", [{"kind": "of-tomorrow"}, {"kind": "download", "input": {"spec": "?"}}])
def test_an_operation_of_another_version_is_shown_with_what_its_row_says(columns) -> None:
    shown = row(operation(columns.pop("kind"), "some-stage", model_id_text="tiny", **columns))
    assert (shown.target, shown.stage_words, shown.where) == ("tiny", "Some stage", "")
    assert [mark.words for mark in shown.stages] == ["Some stage"]
