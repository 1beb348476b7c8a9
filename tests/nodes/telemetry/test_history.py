"""Measurements of nodes: kept once an interval, averaged, dropped, and read back with its gaps."""

from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent.wire.status import GpuModelUse, GpuStatus, HostStatus, NodeStatus
from jobs.loops import reports
from mirbad.kernel.errors import InvalidRequest
from nodes.models import Gpu, Node, TelemetryProgress, TelemetrySample
from nodes.telemetry import history, latest, rollup, values

pytestmark = [pytest.mark.app, pytest.mark.django_db]

GIB = 2**30
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
GPU = "GPU-1"


def said(seq: int, *, used: int | None = GIB, busy: float | None = 50.0, models: dict[str, int] | None = None, **also):
    uses = tuple(
        GpuModelUse(instance_id=f"i-{model}", model_id=model, used_bytes=bytes_, measured=True)
        for model, bytes_ in (models or {}).items()
    )
    gpu = GpuStatus(uuid=GPU, used_bytes=used, total_bytes=24 * GIB, utilization_percent=busy, models=uses)
    told = {"boot_id": "b", "seq": seq, "capabilities_seq": 1, "time": "", "held_claim": None, "gpus": (gpu,)}
    host = HostStatus(memory_total_bytes=8 * GIB, memory_available_bytes=6 * GIB, cpu_percent=10.0)
    return NodeStatus(**(told | {"host": host} | also))


@pytest.fixture
def node():
    row = Node.objects.create(id="pc-1", address="192.0.2.1", lifecycle="approved", reachability="online")
    Gpu.objects.create(node=row, uuid=GPU, index=0, name="RTX")
    return row


def hear(at: datetime, status: NodeStatus, node_id: str = "pc-1") -> None:
    reports.write({node_id: (status, at)})


def day(minutes: int, *, every: int = 15, start: datetime = NOON) -> None:
    seq = int(start.timestamp())
    for second in range(0, minutes * 60, every):
        hear(start + timedelta(seconds=second), said(seq + second, used=(second + 1) * 2**20))


def test_one_word_of_an_interval_is_kept(node):
    for second in (0, 5, 10, 14, 15, 29):
        hear(NOON + timedelta(seconds=second), said(second + 1, used=second))
    rows = TelemetrySample.objects.order_by("at").values_list("at", "data__gpus__GPU-1__used")
    assert list(rows) == [(NOON, 0), (NOON + timedelta(seconds=15), 15)]


def test_what_is_unknown_is_left_out_and_never_0(node):
    hear(NOON, said(1, used=None, busy=None, host=HostStatus()))
    data = TelemetrySample.objects.get().data
    assert data == {"host": {}, "gpus": {GPU: {"total": 24 * GIB}}}
    with time_machine.travel(NOON + timedelta(minutes=1), tick=False):
        read = history.read("pc-1", history.span(NOON, None, 15))
    assert read.gpus[0].used == (None, None, None, None)
    assert read.host["cpu"] == (None,) * 4


def test_more_nodes_cost_no_more_statements():
    ids = [f"pc-{number}" for number in range(60)]
    Node.objects.bulk_create(
        Node(id=pk, address="192.0.2.1", lifecycle="approved", reachability="online") for pk in ids
    )

    def cost(of: list[str], seq: int) -> int:
        with CaptureQueriesContext(connection) as seen:
            reports.write({pk: (said(seq), NOON + timedelta(minutes=seq)) for pk in of})
        return len(seen)

    assert cost(ids[:2], 1) == cost(ids, 2)
    assert TelemetrySample.objects.count() == 62


def test_minutes_and_hours_are_averages_that_know_their_peak(node):
    day(125)
    with time_machine.travel(NOON + timedelta(minutes=126), tick=False):
        while rollup.roll_up_once():
            pass
    minutes = TelemetrySample.objects.filter(step=60).order_by("at")
    assert (minutes.count(), minutes[0].samples, minutes[0].at) == (125, 4, NOON)
    first = minutes[0].data["gpus"][GPU]
    assert first["used"] == round(sum((s + 1) * 2**20 for s in (0, 15, 30, 45)) / 4)
    assert first["peak"] == 46 * 2**20
    hours = TelemetrySample.objects.filter(step=3600).order_by("at")
    assert [(row.at, row.samples) for row in hours] == [(NOON, 240), (NOON + timedelta(hours=1), 240)]
    assert hours[1].data["gpus"][GPU]["peak"] == (2 * 3600 - 14) * 2**20
    assert hours[0].data["host"] == {"used": 2 * GIB, "total": 8 * GIB, "cpu": 10.0, "peak": 2 * GIB}


def test_averaging_again_changes_nothing_and_a_second_worker_writes_nothing(node, monkeypatch):
    day(5)
    with time_machine.travel(NOON + timedelta(minutes=6), tick=False):
        rollup.roll_up_once()
        before = list(TelemetrySample.objects.filter(step=60).order_by("pk").values())
        assert rollup.roll_up_once() == 0
        assert list(TelemetrySample.objects.filter(step=60).order_by("pk").values()) == before
    # The mark moved on between the reading and the writing of a slower worker.
    hear(NOON + timedelta(minutes=7), said(10**6 + 7))
    with time_machine.travel(NOON + timedelta(minutes=9), tick=False):
        late = rollup._averages

        def overtaken(*arguments):
            found = list(late(*arguments))
            TelemetryProgress.objects.filter(pk=60).update(until=NOON + timedelta(minutes=30))
            return iter(found)

        monkeypatch.setattr(rollup, "_averages", overtaken)
        rollup.roll_up_once()
    assert TelemetrySample.objects.filter(step=60).count() == len(before)


def test_a_silent_stretch_has_no_row_and_reads_as_a_gap(node):
    day(2)
    day(2, start=NOON + timedelta(minutes=10))
    with time_machine.travel(NOON + timedelta(minutes=14), tick=False):
        while rollup.roll_up_once():
            pass
        assert TelemetrySample.objects.filter(step=60).count() == 4
        read = history.read("pc-1", history.span(NOON, NOON + timedelta(minutes=12), 60))
    known = [value is not None for value in read.gpus[0].used]
    assert known == [True] * 2 + [False] * 8 + [True] * 2
    assert read.samples == (4, 4, *[0] * 8, 4, 4)


def test_values_go_from_raw_to_minutes_to_hours_and_none_goes_before_it_is_averaged(node):
    day(3)
    later = NOON + timedelta(hours=5)
    with time_machine.travel(later, tick=False):
        assert rollup.prune_once() == 0, "they were not averaged yet"
        while rollup.roll_up_once():
            pass
        assert rollup.prune_once() == 12
        assert set(TelemetrySample.objects.values_list("step", flat=True)) == {60, 3600}
    with time_machine.travel(NOON + timedelta(days=3), tick=False):
        assert rollup.prune_once() == 3
    with time_machine.travel(NOON + timedelta(days=91), tick=False):
        assert rollup.prune_once() == 1
    assert TelemetrySample.objects.count() == 0


def test_a_long_time_is_read_from_averages_and_its_end_from_what_was_just_said(node):
    day(63)
    with time_machine.travel(NOON + timedelta(minutes=63), tick=False):
        while rollup.roll_up_once():
            pass
        hear(NOON + timedelta(minutes=62, seconds=50), said(10**7, used=7 * GIB))
        read = history.read("pc-1", history.span(NOON, None, 3600))
    assert (read.step, read.times) == (3600, (NOON, NOON + timedelta(hours=1)))
    assert read.samples == (240, 12), "each word counts once, averaged or not"


def test_memory_is_by_model(node):
    hear(NOON, said(1, models={"qwen": 5 * GIB, "phi": GIB}))
    hear(NOON + timedelta(seconds=15), said(2, models={"qwen": 7 * GIB}))
    with time_machine.travel(NOON + timedelta(seconds=31), tick=False):
        fine = history.read("pc-1", history.span(NOON, NOON + timedelta(seconds=30), 15))
        coarse = history.read("pc-1", history.span(NOON, NOON + timedelta(seconds=30), 60))
    assert fine.gpus[0].models == {"phi": (GIB, None), "qwen": (5 * GIB, 7 * GIB)}
    assert coarse.gpus[0].models == {"phi": (GIB,), "qwen": (6 * GIB,)}


@pytest.mark.parametrize("name", ["used", "peak", "total", "models"])
def test_a_model_may_be_called_what_it_likes(name):
    part = {"host": {}, "gpus": {GPU: {"used": 3, "models": {name: 2}}}}
    samples, data = values.average([(1, part), (1, part)])
    assert (samples, data["gpus"][GPU]) == (2, {"used": 3, "peak": 3, "models": {name: 2}})


@pytest.mark.parametrize(
    ("start", "end", "step", "word"),
    [
        (NOON, NOON, None, "from"),
        (NOON + timedelta(days=1), None, None, "from"),
        (NOON - timedelta(hours=1), None, 5, "step"),
        (NOON - timedelta(hours=3), None, 30, "step"),
        (NOON - timedelta(days=3), None, 60, "step"),
        (NOON - timedelta(days=2), None, 60, "step"),
        (NOON, None, 100_000, "step"),
    ],
)
def test_bounds_are_said(start, end, step, word):
    with (
        time_machine.travel(NOON if start != NOON or step is None else NOON + timedelta(hours=1), tick=False),
        pytest.raises(InvalidRequest) as refused,
    ):
        history.span(start, end, step)
    assert refused.value.problems[0]["field"] == word


@pytest.mark.parametrize(
    ("hours", "step"), [(0.1, 15), (1, 15), (2, 30), (6, 120), (24, 600), (24 * 7, 3600), (24 * 30, 10800)]
)
def test_the_step_is_as_fine_as_is_of_use(hours, step):
    with time_machine.travel(NOON, tick=False):
        assert history.span(NOON - timedelta(hours=hours), None, None).step == step


@pytest.mark.parametrize("text", ["2026-03-01T12:00:00Z", "2026-03-01T13:00:00+01:00", "2026-03-01T13:00:00 01:00"])
def test_a_time_is_read_with_its_offset(text):
    assert history.moment(text, "from") == NOON


@pytest.mark.parametrize("text", ["", "yesterday", "2026-03-01T12:00:00", "2026-03-01", "0001-01-01T00:00:00+14:00"])
def test_a_time_without_its_offset_is_refused(text):
    with pytest.raises(InvalidRequest):
        history.moment(text, "from")


def test_the_last_word_tells_its_age(node):
    hear(NOON, said(1))
    with time_machine.travel(NOON + timedelta(seconds=4), tick=False):
        found = latest(["pc-1", "nobody"])
    assert set(found) == {"pc-1"}
    assert (found["pc-1"].age_seconds, found["pc-1"].fresh) == (4.0, True)
    assert found["pc-1"].gpus[GPU].used_bytes == GIB
    reports.write({"pc-1": (None, NOON + timedelta(seconds=9))})
    with time_machine.travel(NOON + timedelta(seconds=9), tick=False):
        aged = latest(["pc-1"])["pc-1"]
    assert (aged.age_seconds, aged.fresh) == (9.0, False), "a sign of life brings no new values"


def test_a_node_that_never_spoke_has_no_age():
    Node.objects.create(id="pc-9", address="192.0.2.9")
    found = latest(["pc-9"])["pc-9"]
    assert (found.at, found.age_seconds, found.fresh, found.host) == (None, None, False, HostStatus())


def test_last_words_cost_the_same_for_many():
    def cost(count: int) -> int:
        Node.objects.all().delete()
        ids = [f"pc-{number}" for number in range(count)]
        Node.objects.bulk_create(Node(id=pk, address="192.0.2.1") for pk in ids)
        with CaptureQueriesContext(connection) as seen:
            assert len(latest(ids)) == count
        return len(seen)

    assert cost(1) == cost(40) == 2
