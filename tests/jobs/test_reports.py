"""Reports of many nodes, written together."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent.wire.instances import InstanceState
from agent.wire.status import Event, GpuStatus, HostStatus, NodeStatus
from jobs.loops import reports
from jobs.loops.reports import Reports
from mirbad.kernel import clock
from mirbad.kernel.errors import MirbadError
from models_app import routing
from models_app.models import ModelDefinition, Placement
from nodes import reachability
from nodes.link import client
from nodes.models import Gpu, Node
from tests.bench.simfleet.engines import SimInstances
from tests.bench.simfleet.plan import Member

pytestmark = [pytest.mark.app, pytest.mark.django_db]

GPU = "GPU-1"


def status(seq: int = 1, node_id: str = "pc-0", **also) -> NodeStatus:
    values = {"boot_id": "boot-1", "capabilities_seq": 1, "time": "", "held_claim": None}
    values |= {"host": HostStatus(cpu_percent=float(seq)), "gpus": (GpuStatus(uuid=GPU, used_bytes=seq),)}
    return NodeStatus(seq=seq, **(values | also))


def fleet(count: int) -> list[str]:
    ids = [f"pc-{number}" for number in range(count)]
    Node.objects.bulk_create(
        Node(id=pk, address="192.0.2.1", lifecycle="approved", reachability="online") for pk in ids
    )
    Gpu.objects.bulk_create(Gpu(node_id=pk, uuid=GPU) for pk in ids)
    return ids


def words(ids: list[str], seq: int = 1) -> dict[str, reports.Report]:
    return {pk: (status(seq), clock.now()) for pk in ids}


def test_all_that_was_said_is_kept_and_only_what_is_newer():
    ids = fleet(3)
    assert reports.write(words(ids, 5)) == set()
    assert reports.write(words(ids, 4)) == set()
    for node in Node.objects.all():
        assert (node.seq, node.host["cpuPercent"], node.last_seen_at is None) == (5, 5.0, False)
    assert {gpu.seen["usedBytes"] for gpu in Gpu.objects.all()} == {5}


def test_the_number_of_reads_does_not_grow_with_the_nodes():
    def reads(ids: list[str], seq: int) -> int:
        with CaptureQueriesContext(connection) as seen:
            reports.write(words(ids, seq))
        return sum(query["sql"].startswith("SELECT") for query in seen)

    ids = fleet(40)
    assert reads(ids[:2], 1) == reads(ids, 2)


def test_a_node_that_is_offline_is_online_again_and_one_that_is_fenced_gets_a_new_line():
    ids = fleet(3)
    Node.objects.filter(pk="pc-0").update(reachability="offline")
    Node.objects.filter(pk="pc-1").update(reachability="fenced", reachability_reason="obeys another")
    assert reports.write(words(ids)) == {"pc-1"}
    assert Node.objects.get(pk="pc-0").reachability == "online"


def test_a_sign_of_life_without_a_status_moves_the_last_contact_alone():
    fleet(1)
    reports.write(words(["pc-0"], 3))
    before = Node.objects.get()
    reports.write({"pc-0": (None, clock.now())})
    after = Node.objects.get()
    assert after.last_seen_at > before.last_seen_at
    assert (after.seq, after.host) == (before.seq, before.host)


def test_one_node_whose_report_cannot_be_kept_costs_the_others_nothing(monkeypatch):
    ids = fleet(5)
    whole = reachability.observe_many

    def picky(given):
        if "pc-2" in given:
            raise OverflowError("too large")
        return whole(given)

    monkeypatch.setattr(reachability, "observe_many", picky)
    assert reports.write(words(ids)) == {"pc-2"}
    assert sorted(Node.objects.filter(seq=1).values_list("pk", flat=True)) == ["pc-0", "pc-1", "pc-3", "pc-4"]


def test_the_last_status_counts_and_a_later_ping_keeps_it():
    gathered = Reports()
    gathered.heard("pc-0", status(1))
    gathered.heard("pc-0", status(2))
    gathered.heard("pc-0")
    taken = gathered.take()
    assert taken["pc-0"][0].seq == 2
    assert gathered.take() == {}
    gathered.heard("pc-0", status(3))
    gathered.give_back(taken)
    assert gathered.take_of("pc-0")["pc-0"][0].seq == 3
    assert gathered.take_of("pc-0") == {}


def test_models_on_many_nodes_are_seen_at_once_and_a_steady_one_is_only_stamped():
    fleet(1)
    model = ModelDefinition.objects.create(id="m-1", runtime="sim", delivery="process")
    placement = Placement.objects.create(model=model, node_id_text="pc-0", desired="running")
    view = SimInstances(Member("pc-0", "", 1, "", str(placement.pk), "m-1"), lambda _: None).views()[0]
    reports.write({"pc-0": (status(1, instances=(view,)), clock.now())})
    first = Placement.objects.get()
    assert (first.observed, first.observed_seq) == ("ready", 1)
    reports.write({"pc-0": (status(2, instances=(view.model_copy(update={"memory_bytes": 7}),)), clock.now())})
    second = Placement.objects.get()
    assert (second.observed_seq, second.observed_view) == (2, first.observed_view)
    exited = view.model_copy(update={"state": InstanceState.EXITED})
    reports.write({"pc-0": (status(3, instances=(exited,)), clock.now())})
    assert Placement.objects.get().observed == "failed"


def test_a_lost_line_writes_first_what_had_come_over_it():
    fleet(1)
    reports.write_loss("pc-0", "cut", words(["pc-0"], 9))
    node = Node.objects.get()
    assert (node.seq, node.reachability) == (9, "online"), "it was heard just now"


@pytest.mark.parametrize(
    "hostile",
    ['"seq": 9223372036854775808', '"seq": 1e400', '"bootId": "' + "b" * 65 + '"', '"host": {"cpuPercent": NaN}'],
)
def test_what_no_database_keeps_is_no_status(hostile):
    name = hostile.partition(":")[0]
    text = status().model_dump_json(by_alias=True)
    value = ",".join([hostile, *(part for part in text[1:-1].split(",") if not part.startswith(name))])
    target = type("Target", (), {"node_id": "pc-0"})
    with pytest.raises(MirbadError):
        client._parse(target, ("{" + value + "}").encode(), NodeStatus)


def test_a_nul_that_an_engine_printed_is_shown_as_unreadable_and_an_escaped_one_stays():
    fleet(1)
    view = SimInstances(Member("pc-0", "", 1, "", "i-1", "m-1"), lambda _: None).views()[0]
    told = view.model_copy(update={"last_lines": ("a\x00b", "\\u0000", "\\\x00")})
    event = Event(kind="instance", boot_id="b", seq=1, instance=told)
    target = type("Target", (), {"node_id": "pc-0"})
    read = client._parse(target, event.model_dump_json(by_alias=True).encode(), Event)
    assert read.instance.last_lines == ("a\ufffdb", "\\u0000", "\\\ufffd")


def test_the_gateway_looks_again_when_a_broken_line_is_made_anew():
    (node_id,) = fleet(1)
    reports.write_first(node_id, status(1))
    before = routing.version()
    reports.write_first(node_id, status(2), again=True)
    assert routing.version() == before + 1, "the node may have come back with another key"
