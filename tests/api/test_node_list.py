"""``GET /api/nodes``: a list prints what the serializer of one node prints, however many nodes there are."""

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework import serializers

from agent.common import keys
from mirbad.api import printing
from mirbad.api.serializers import CamelSerializer
from mirbad.kernel import clock
from nodes import conditions, queries
from nodes.api.serializers import NodeSerializer
from nodes.models import Gpu, Node, NodePin
from nodes.pki import renewal, store
from nodes.pki.certs import issue_node, to_pem

pytestmark = pytest.mark.app

NOW = datetime(2031, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)


def _fleet() -> None:
    """Nodes in every state, with much and with nothing said of them."""
    cert = issue_node(store.issuer(), keys.new_key().public_key(), "a-node", clock.now())
    for number, (lifecycle, reach) in enumerate(
        [("pending", "unknown"), ("approved", "unknown"), ("approved", "online"), ("approved", "online"),
         ("approved", "offline"), ("approved", "incompatible"), ("approved", "fenced"), ("revoked", "offline")]
    ):  # fmt: skip
        node = Node.objects.create(id=f"n-{number}", address="192.0.2.1", lifecycle=lifecycle, reachability=reach)
        slot = NodePin.PENDING if lifecycle == "pending" else NodePin.CURRENT
        NodePin.objects.create(node=node, slot=slot, spki_sha256=f"{number:064x}", cert_pem=to_pem(cert))
    full = Node.objects.get(pk="n-3")
    full.display_name, full.draining, full.labels = "Näme", True, {"rack": "4"}
    full.memory_reserve_bytes, full.max_concurrent_starts, full.protocol = 2**40, 3, 1
    full.last_seen_at = full.enrolled_at = full.approved_at = full.cert_not_after = NOW
    full.host, full.warnings = {"cpuPercent": None, "load": [1.5], "deep": {"a": {"b": None}}}, ["The disk is full."]
    full.save()
    NodePin.objects.create(node=full, slot=NodePin.NEXT, spki_sha256="f" * 64)
    for index in (2, 0, 1):
        Gpu.objects.create(node=full, uuid=f"GPU-{index}", index=index, memory_bytes=2**37, seen={"used": index})
    Gpu.objects.create(node=full, uuid="GPU-lost", present=False)
    conditions.replace("n-3", "test", [conditions.Condition("b", "Second."), conditions.Condition("a", "First.")])


def test_a_list_prints_every_node_as_its_serializer_does(identity):
    _fleet()
    one_by_one = NodeSerializer(queries.rows(include_revoked=True), many=True).data
    found = list(Node.objects.all())
    printed = printing.rows(NodeSerializer, found, parts=queries.parts(found))
    assert printed == [dict(row) for row in one_by_one]
    assert [list(row) for row in printed] == [list(row) for row in one_by_one]
    assert printed[3]["reasons"] == ["First.", "Second.", "The disk is full."]
    # Where a GPU without an index stands is the database's choice.
    named = [gpu["uuid"] for gpu in printed[3]["gpus"]]
    assert [uuid for uuid in named if uuid != "GPU-lost"] == ["GPU-0", "GPU-1", "GPU-2"]
    assert "GPU-lost" in named


def test_the_answer_of_the_api_is_that_list(identity, viewer):
    _fleet()
    answer = viewer.client.get("/api/nodes?includeRevoked=true").json()
    assert answer["count"] == 8
    assert answer["items"][3]["lastSeenAt"] == "2031-02-03T04:05:06.789000Z"
    pin = NodePin.objects.get(node="n-3", slot=NodePin.CURRENT)
    assert datetime.fromisoformat(answer["items"][3]["renewalAt"]) == renewal.renewal_at(pin)
    assert answer["items"][3]["nextSpkiSha256"] == "f" * 64
    assert answer["items"][0]["pendingSpkiSha256"] == f"{0:064x}"


def test_more_nodes_cost_no_more_statements(identity, viewer):
    _fleet()
    counts = []
    for limit in (1, 8):
        with CaptureQueriesContext(connection) as seen:
            answer = viewer.client.get(f"/api/nodes?includeRevoked=true&limit={limit}")
        assert len(answer.json()["items"]) == limit
        counts.append(len(seen))
    assert counts[0] == counts[1]


class _Inner(CamelSerializer):
    some_name = serializers.CharField()


class _Every(CamelSerializer):
    a_text = serializers.CharField()
    number = serializers.IntegerField(allow_null=True)
    yes = serializers.BooleanField()
    when = serializers.DateTimeField()
    any_json = serializers.DictField()
    texts = serializers.DictField(child=serializers.CharField())
    listed = serializers.ListField(child=serializers.IntegerField())
    far = serializers.CharField(source="inner.some_name")
    inner = _Inner()
    many = _Inner(many=True)
    ratio = serializers.FloatField()
    secret = serializers.CharField(write_only=True)


@pytest.mark.parametrize("when", [NOW, NOW.astimezone(timezone(timedelta(hours=5))), NOW.replace(microsecond=0)])
def test_every_kind_of_field_is_printed_as_the_framework_prints_it(when):
    row = SimpleNamespace(
        a_text="x", number=None, yes=True, when=when, any_json={"a": [None]}, texts={"k": 1}, listed=[1],
        inner=SimpleNamespace(some_name="y"), many=[SimpleNamespace(some_name="z")], ratio=1, secret="s",
    )  # fmt: skip
    assert printing.rows(_Every, [row]) == [dict(_Every(row).data)]
