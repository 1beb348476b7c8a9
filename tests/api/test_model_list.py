"""The lists of ``/api``: each prints what the serializer of one row prints, in as many statements for any length."""

import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from model_bakery import baker

from jobs.api.serializers import OperationSerializer
from jobs.models import Operation
from mirbad.accounts.api.serializers import TokenSerializer
from mirbad.accounts.models import AdminToken
from mirbad.api import printing
from mirbad.api.serializers import CamelSerializer
from mirbad.kernel import clock, ids
from models_app import queries
from models_app.api.keys import KeySerializer
from models_app.api.serializers import ModelSerializer
from models_app.models import ApiKey, Hold, ModelDefinition, ModelSource, Placement, UsageDay
from models_app.registry.specs import config_hash
from nodes.models import Node
from tests.people import Person

pytestmark = pytest.mark.app


def _models(count: int) -> None:
    """Models of every kind: unplaced, one node, two replicas, shards over two nodes, held, due for a restart."""
    nodes = [
        Node.objects.create(id=f"n-{number}", address="192.0.2.1", lifecycle="approved", reachability="online")
        for number in range(2)
    ]
    for number in range(count):
        model = baker.make(
            ModelDefinition, id=f"m-{number:04}", runtime=("vllm", "llama.cpp", "sim")[number % 3], delivery="process",
            served_names=[f"org/m-{number}"], env={"A": "1"}, secret_env_names=["B"], secret_env_sealed=b"sealed",
            args=["--x", "1"], tags=["t"], context_length=None if number % 2 else 4096, _fill_optional=False,
        )  # fmt: skip
        for position in range(number % 3):
            ModelSource.objects.create(model=model, folder=f"f-{position}", file="x.gguf", position=position)
        _place(model, nodes, number)
    Hold.objects.create(model_id="m-0001", holder_kind="job", holder_id="1", words="A move")


def _place(model: ModelDefinition, nodes: list[Node], number: int) -> None:
    shape = number % 4
    replica = ids.new_uid()
    for index, node in enumerate(nodes[: (0, 1, 2, 2)[shape]]):
        sharded = {"replica": replica, "shard": index, "shards": 2} if shape == 3 else {}
        placement = Placement.objects.create(
            model=model, node_id_text=node.pk, gpu_uuids=[f"GPU-{index}"], routed=index == 0 or shape == 3,
            observed=("ready", "failed", "unknown", "stopped")[(number // 4) % 4], observed_reason="Words.",
            desired="running", observed_at=clock.now(), start_seconds=1.5, restart_at=None,
            halted="Stopped." if number % 5 == 0 else "", **sharded,
        )  # fmt: skip
        running = "f" * 64 if number % 7 == 0 else config_hash(model, placement, node)
        Placement.objects.filter(pk=placement.pk).update(observed_config_hash=running)


def _operations(count: int) -> None:
    outcomes = ("open", "succeeded", "failed", "cancelled")
    for number in range(count):
        outcome = outcomes[number % 4]
        Operation.objects.create(
            kind=("launch", "stop", "unknown-kind")[number % 3], concurrency_group="run", target_kind="placement",
            target_id=str(number), node_id_text="n-0", model_id_text="m-0000", actor="config", stage="checking",
            next_run_at=clock.now() + timedelta(seconds=number), outcome=outcome,
            finished_at=None if outcome == "open" else clock.now(),
            progress={"text": "Pulling.", "doneBytes": number} if number % 2 else {},
            error={"code": "x", "detail": "It failed.", "lines": ["a"]} if outcome == "failed" else {},
        )  # fmt: skip


def _alike(printed: list[dict], one_by_one: list[dict]) -> None:
    assert json.loads(json.dumps(printed, default=str)) == json.loads(json.dumps(one_by_one, default=str))
    assert [list(row) for row in printed] == [list(row) for row in one_by_one]


def test_a_list_prints_every_model_as_its_serializer_does(db):
    _models(40)
    context = {"nodes": Node.objects.in_bulk()}
    # A serializer of its own for each row, as one model is shown.
    one_by_one = [dict(ModelSerializer(model, context=context).data) for model in queries.all_models()]
    printed = printing.rows(ModelSerializer, queries.all_models(), **context)
    _alike(printed, one_by_one)
    assert [row["id"] for row in printed if row["heldBy"]] == ["m-0001"]
    due = {row["id"] for row in printed if row["restartNeeded"]}
    assert due == {"m-0035"}, "due are models whose engine runs, with another configuration: every seventh"
    assert [len(row["placements"]) for row in printed[:4]] == [0, 1, 2, 2]
    assert [len(row["replicas"]) for row in printed[:4]] == [0, 1, 2, 1]
    assert all(row["placement"] == (row["placements"] or [None])[0] for row in printed)
    assert {row["state"]["name"] for row in printed} >= {"unplaced", "ready", "failed", "unknown", "stopped"}


def test_other_lists_print_every_row_as_their_serializers_do(owner):
    _operations(24)
    for number in range(6):
        baker.make(ApiKey, name=f"k{number}", prefix="ssk_abcdefgh", digest=f"{number:064x}", allowed_models=["a"])
    baker.make(AdminToken, name="one", owner=owner.user, digest="1" * 64)
    baker.make(AdminToken, name="two", owner=None, digest="2" * 64)
    for serializer, found in (
        (OperationSerializer, list(Operation.objects.order_by("-id"))),
        (KeySerializer, list(ApiKey.objects.all())),
        (TokenSerializer, list(AdminToken.objects.select_related("owner"))),
    ):
        assert found
        printed, one_by_one = printing.rows(serializer, found), [dict(serializer(row).data) for row in found]
        _alike([_still(row) for row in printed], [_still(row) for row in one_by_one])


def _still(row: dict) -> dict:
    """Return `row` without the seconds until its next check."""
    return {name: value for name, value in row.items() if name != "waitsFor"}


def _everything(owner: Person) -> None:
    """Two dozen rows of each list."""
    _models(24)
    _operations(24)
    for number in range(24):
        baker.make(ApiKey, name=f"k{number}", prefix="ssk_abcdefgh", digest=f"{number:064x}")
        baker.make(AdminToken, name=f"t{number}", owner=owner.user, digest=f"{number:064x}")
        baker.make(UsageDay, key_number=number, model_id_text="m", day=clock.now().date())


@pytest.mark.parametrize("path", ["models", "operations", "keys", "tokens", "usage", "status", "nodes", "fencing"])
def test_more_rows_cost_no_more_statements(owner, path):
    _everything(owner)
    counts = {}
    for limit in (2, 24):
        with CaptureQueriesContext(connection) as seen:
            answer = owner.client.get(f"/api/{path}?limit={limit}")
        assert answer.status_code == 200
        if path not in ("status", "fencing", "nodes"):
            assert len(answer.json()["items"]) == limit
        counts[limit] = len(seen)
    assert counts[2] == counts[24]


@pytest.mark.parametrize("path", ["models", "operations", "keys", "tokens", "usage", "status", "nodes", "fencing"])
def test_more_rows_build_no_more_serializers(owner, monkeypatch, path):
    _everything(owner)
    built = []
    original = CamelSerializer.get_fields

    def counted(self):
        built.append(type(self).__name__)
        return original(self)

    monkeypatch.setattr(CamelSerializer, "get_fields", counted)
    counts = []
    for limit in (2, 24):
        built.clear()
        assert owner.client.get(f"/api/{path}?limit={limit}").status_code == 200
        counts.append(sorted(built))
    assert counts[0] == counts[1]
