"""A small fleet for the tests of /api: a node with a GPU, one that waits, a model placed, an operation."""

from dataclasses import dataclass

import pytest
from model_bakery import baker

from jobs.models import Operation, OperationEvent
from mirbad.kernel import clock
from models_app.models import ApiKey, ModelDefinition, Placement
from nodes.models import Gpu, Node, NodePin
from nodes.pki import authority

SPKI = "ab" * 32


@dataclass
class Fleet:
    node: Node
    waiting: Node
    model: ModelDefinition
    placement: Placement
    operation: Operation
    key: ApiKey


@pytest.fixture
def identity(db):
    return authority.ensure()


@pytest.fixture
def fleet(db):
    return make_fleet()


def make_fleet(suffix=""):
    node = Node.objects.create(id=f"pc-1{suffix}", address="192.0.2.10", lifecycle="approved", reachability="online")
    Gpu.objects.create(node=node, uuid=f"GPU-1{suffix}", name="Card", memory_bytes=None)
    waiting = Node.objects.create(id=f"pc-2{suffix}", address="192.0.2.11")
    spki = SPKI if not suffix else format(hash(suffix) % 16**12, "064x")
    NodePin.objects.create(node=waiting, slot="pending", spki_sha256=spki)
    model = baker.make(ModelDefinition, id=f"small{suffix}", runtime="sim", delivery="process", _fill_optional=False)
    placement = Placement.objects.create(model=model, node_id_text=node.pk, observed="stopped")
    operation = Operation.objects.create(
        kind="launch",
        concurrency_group="run",
        target_kind="placement",
        target_id=str(placement.pk),
        node_id_text=node.pk,
        model_id_text=model.pk,
        actor="config",
        stage="checking",
        next_run_at=clock.now(),
    )
    OperationEvent.objects.create(operation=operation, time=clock.now(), stage="checking", text="Start requested.")
    key = baker.make(ApiKey, name=f"key{suffix}", prefix="ssk_abcdefgh", digest=f"{suffix}{'d' * 64}"[:64])
    return Fleet(node, waiting, model, placement, operation, key)
