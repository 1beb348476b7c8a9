"""Weights brought to a move's target first: real downloads from a hub, open and gated, cut off and without room."""

import shutil
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from agent.downloads.hub import RetryPolicy
from audit.models import AuditLine
from jobs import worker
from jobs.models import Operation, OperationEvent
from jobs.requests import model_runs, moves
from models_app.artifacts.errors import Gated
from models_app.models import Hold, ModelSource, Placement
from nodes.pki import authority
from tests.agent.downloads.conftest import noise
from tests.bench.hub import Hub, Repository
from tests.jobs.moves.bench import TwoNodes, run
from tests.models_app.things import PERSON, placed
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]
SIZE = 2 * 1024 * 1024
TOKEN = "hf_canary_1234567890"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        yield made


@pytest.fixture
def nodes(transactional_db, tmp_path, hub, quick) -> Iterator[TwoNodes]:
    authority.ensure()
    for name in ("local", "next"):
        (tmp_path / name).mkdir()
    with TwoNodes(tmp_path).up() as made:
        made.agents["next"].server._downloads._retry_policy = RetryPolicy(2.0, 2.0, (0.05, 0.05, 0.05))
        yield made


def model(hub: Hub, **changes) -> Repository:
    """A stopped model on ``local`` whose weights the hub has."""
    files = {"config.json": b"{}", "model.safetensors": noise(SIZE)}
    found = hub.add(Repository(**{"name": "acme/tiny", "files": files, **changes}))
    placed(node_id="local")
    ModelSource.objects.create(
        model_id="tiny", kind=ModelSource.HUGGING_FACE, folder="acme--tiny", repository="acme/tiny"
    )
    return found


def middle(operation: Operation) -> None:
    def some() -> bool:
        worker.run(operation.pk)
        operation.refresh_from_db()
        return 0 < operation.progress.get("doneBytes", 0) < SIZE

    until(some, "bytes to come")


def test_the_weights_come_first_and_their_bytes_are_told(nodes, hub) -> None:
    model(hub)
    hub.faults.bytes_per_second = 6e5
    operation = moves.request("tiny", "next", (), PERSON)
    middle(operation)
    (brought,) = moves.record("tiny").downloads
    assert (brought.repository, brought.folder, brought.state) == ("acme/tiny", "acme--tiny", "downloading")
    assert 0 < brought.done_bytes < brought.total_bytes
    hub.faults.bytes_per_second = None
    assert run(operation).outcome == "succeeded"
    assert moves.record("tiny").downloads[0].state == "ready"
    there = nodes.agents["next"].config.models_root / "acme--tiny" / "model.safetensors"
    assert there.stat().st_size == SIZE
    # It goes back without a byte, and what is there is not brought again.
    asked = len(hub.of("store"))
    back = moves.request("tiny", "local", (), PERSON)
    run(back)
    again = run(moves.request("tiny", "next", (), PERSON))
    assert again.outcome == "succeeded"
    assert len(hub.of("store")) == asked + 1, "once to the other node"


def test_a_cancelled_move_ends_its_download(nodes, hub) -> None:
    model(hub)
    hub.faults.bytes_per_second = 4e5
    operation = moves.request("tiny", "next", (), PERSON)
    middle(operation)
    moves.cancel("tiny", PERSON)
    assert run(operation).outcome == "cancelled"
    assert Placement.objects.get().node_id_text == "local"
    assert not Hold.objects.exists()


def test_a_gated_model_moves_with_a_token_that_is_kept_nowhere(nodes, hub) -> None:
    model(hub, gated=True, allowed={TOKEN})
    failed = run(moves.request("tiny", "next", (), PERSON))
    assert (failed.outcome, failed.error["code"]) == ("failed", "gated")
    assert "Start the move again with a Hugging Face token" in failed.error["detail"]
    assert Placement.objects.get().node_id_text == "local"
    assert run(moves.request("tiny", "next", (), PERSON, hub_token=TOKEN)).outcome == "succeeded"
    rows = "".join(str(rows.objects.values_list()) for rows in (Operation, OperationEvent, AuditLine))
    assert "canary" not in rows
    config = nodes.agents["next"].config
    on_disk = [p for root in (config.state_dir, config.models_root) for p in root.rglob("*") if p.is_file()]
    assert not any(b"canary" in path.read_bytes() for path in on_disk)


def test_a_token_that_does_not_suffice_is_refused_at_once(nodes, hub) -> None:
    model(hub, gated=True, allowed={TOKEN})
    hub.accounts.add("hf_somebody_else")
    with pytest.raises(Gated):
        moves.request("tiny", "next", (), PERSON, hub_token="hf_somebody_else")
    assert not Operation.objects.exists()


def test_a_move_whose_node_lost_the_token_says_to_start_it_again_with_one(nodes, hub) -> None:
    model(hub, gated=True, allowed={TOKEN})
    hub.faults.bytes_per_second = 4e5
    operation = moves.request("tiny", "next", (), PERSON, hub_token=TOKEN)
    middle(operation)
    nodes.agents["next"].end()
    hub.faults.bytes_per_second = None
    nodes.agents["next"].begin()
    failed = run(operation)
    assert (failed.outcome, failed.error["code"]) == ("failed", "gated")
    assert "Start the move again with a Hugging Face token" in failed.error["detail"]
    assert Placement.objects.get().node_id_text == "local"


def test_a_target_without_room_changes_nothing(nodes, hub, monkeypatch) -> None:
    model(hub)
    assert run(model_runs.start("tiny", PERSON)).outcome == "succeeded"
    full = SimpleNamespace(total=SIZE, used=SIZE, free=SIZE // 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    failed = run(moves.request("tiny", "next", (), PERSON))
    assert (failed.outcome, failed.error["code"]) == ("failed", "disk_full")
    placement = Placement.objects.get()
    assert (placement.node_id_text, placement.desired, placement.observed) == ("local", "running", "ready")
    assert not Hold.objects.exists()
