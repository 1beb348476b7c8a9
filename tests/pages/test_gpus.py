"""GPUs on pages: by node on the dashboard, with all that is known on their node's tab, over time in charts."""

import re
from datetime import timedelta

import pytest
from django.urls import reverse

from agent.wire.capability import GpuCapability, PcieLink
from agent.wire.status import GpuModelUse, GpuProcess, GpuStatus
from mirbad.kernel import clock
from nodes.models import Gpu, Node
from nodes.pages.contexts import charts, gpus
from nodes.telemetry import history
from tests.pages import seed

pytestmark = [pytest.mark.app, pytest.mark.django_db]

GIB = 2**30


@pytest.fixture
def fleet(db):
    seed.fleet()


def text(answer) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


def show(node_id: str, uuid: str, told: dict | None = None, **seen) -> None:
    """One card, as its node tells it; nothing in `told` leaves what it is unknown."""
    node = Node.objects.get(pk=node_id)
    card = GpuCapability(uuid=uuid, index=7, name="RTX", **(told or {}))
    node.capabilities = {**node.capabilities, "gpus": [*node.capabilities["gpus"], card.to_wire()]}
    node.save()
    status = GpuStatus(uuid=uuid, **seen)
    Gpu.objects.create(node=node, uuid=uuid, index=7, name="RTX", seen=status.to_wire() if seen else {})


def card(node_id: str, uuid: str) -> gpus.GpuCard:
    node = Node.objects.prefetch_related("gpus").get(pk=node_id)
    return next(one for one in gpus.cards(node) if one.uuid == uuid)


def test_the_dashboard_shows_every_node_with_what_is_left_of_each_card(fleet, viewer):
    Gpu.objects.filter(node="atlas", index=0).update(reserve_bytes=8 * GIB)
    shown = text(viewer.client.get(reverse("dashboard")))
    assert "7 GPUs" in shown
    assert "headroom 29.9 GiB" in shown, "38 GiB are free, 8 of them are in reserve"
    for name in ("Atlas", "Borealis", "Cirrus", "local"):
        assert name in shown


def test_the_dashboard_is_narrowed_to_one_node_or_to_a_name(fleet, viewer):
    for query in ("node=atlas", "q=ATL"):
        page = viewer.client.get(reverse("dashboard") + f"?{query}").content.decode()
        assert 'id="strip-atlas"' in page
        assert 'id="strip-borealis"' not in page
    assert b"No node matches" in viewer.client.get(reverse("dashboard") + "?node=nobody").content


@pytest.mark.parametrize("page", ["", "0", "-1", "x", "99999999999999", "²", "2"])
def test_a_page_number_that_makes_no_sense_is_no_fault(fleet, viewer, page):
    assert viewer.client.get(reverse("dashboard"), {"page": page}).status_code == 200


def test_a_large_fleet_comes_in_pages(viewer):
    Node.objects.bulk_create(
        Node(id=f"pc-{number:03}", address="192.0.2.1", lifecycle="approved") for number in range(60)
    )
    first = viewer.client.get(reverse("dashboard")).content.decode()
    assert first.count('class="card strip') == 24
    assert "?page=2" in first
    last = viewer.client.get(reverse("dashboard") + "?page=3").content.decode()
    assert last.count('class="card strip') == 12
    assert "?page=4" not in last


@pytest.mark.parametrize(("sent", "to"), [("", "/"), ("?node=atlas", "/?node=atlas"), ("?node=a%26b", "/?node=a%26b")])
def test_monitoring_is_part_of_the_overview(fleet, viewer, sent, to):
    answer = viewer.client.get(f"/monitoring{sent}")
    assert (answer.status_code, answer["Location"]) == (302, to)


def test_the_overview_is_narrowed_to_one_node_with_its_history(fleet, viewer):
    page = viewer.client.get("/?node=atlas").content.decode()
    assert 'id="fleet-atlas"' in page
    assert 'id="fleet-local"' not in page
    assert reverse("nodes:history", args=["atlas"]) in page
    assert reverse("nodes:history", args=["atlas"]) not in viewer.client.get("/").content.decode()
    assert viewer.client.get("/?node=nobody").status_code == 200


def test_a_lost_card_says_so_and_shows_no_figures(fleet, viewer):
    show("atlas", "GPU-7", {"lost": True, "problem": "GPU 7 is lost."}, lost=True, problem="GPU 7 is lost.")
    found = card("atlas", "GPU-7")
    assert (found.badge.label, found.works, found.problem) == ("Lost", False, "GPU 7 is lost.")
    assert "1 lost" in text(viewer.client.get("/nodes/atlas/gpus"))


@pytest.mark.parametrize(
    ("code", "label"),
    [
        ("gpu_needs_reset", "Needs reset"),
        ("gpu_needs_reboot", "Needs reboot"),
        ("gpu_needs_drain", "Needs drain"),
        ("gpu_of_tomorrow", "Problem"),
        (None, "Problem"),
    ],
)
@pytest.mark.parametrize("sooner", ["status", "capabilities", "both"])
def test_a_card_that_wants_something_says_what(fleet, viewer, code, label, sooner):
    fault = {
        "problem": "GPU 7 needs a reset (action 1).",
        "problem_code": code,
        "recovery": "reset",
        "xid": 48,
    }
    show(
        "atlas", "GPU-7", fault if sooner != "status" else {},
        used_bytes=GIB, **(fault if sooner != "capabilities" else {}),
    )  # fmt: skip
    found = card("atlas", "GPU-7")
    assert (found.badge.label, found.works, found.problem) == (label, False, fault["problem"])
    page = text(viewer.client.get("/nodes/atlas/gpus"))
    assert label in page
    assert fault["problem"] in page
    answer = viewer.client.get("/api/nodes/atlas/gpus").json()
    (told,) = [gpu for gpu in answer["gpus"] if gpu["uuid"] == "GPU-7"]
    names = ("problem", "problemCode", "recovery", "xid", "released", "lost")
    assert [told[name] for name in names] == [fault["problem"], code, "reset", 48, False, False]


def test_a_card_of_a_drained_node_says_since_when_its_values_are(fleet, viewer):
    show("atlas", "GPU-7", {}, used_bytes=GIB, total_bytes=4 * GIB, age_seconds=4000.0, released=True)
    Node.objects.filter(pk="atlas").update(last_seen_at=clock.now())
    found = card("atlas", "GPU-7")
    assert (found.badge.label, found.used, found.works) == ("Not read", "1 GiB, 1 h 6 min ago", True)
    (told,) = [gpu for gpu in viewer.client.get("/api/nodes/atlas/gpus").json()["gpus"] if gpu["uuid"] == "GPU-7"]
    assert (told["released"], told["valuesAgeSeconds"], told["usedBytes"]) == (True, 4000.0, GIB)


def test_an_unknown_value_reads_not_reported_and_never_0(fleet):
    show("atlas", "GPU-7", temperature_celsius=40.0)
    found = card("atlas", "GPU-7")
    assert dict(found.figures) == {
        "Total": "not reported", "Used": "not reported", "Free": "not reported", "Reserve": "none",
        "Headroom": "not reported", "Temperature": "40 °C", "Power": "not reported", "Compute": "not reported",
        "Driver": "not reported",
    }  # fmt: skip
    assert (found.busy.known, found.memory.known, found.processes) == (False, False, None)
    assert found.link == "not reported"


def test_a_slow_link_is_told_with_what_it_carries(fleet):
    link = PcieLink(
        lanes=8, card_lanes=16, generation=3, card_generation=4, bytes_per_second=int(7.9e9),
        card_bytes_per_second=int(31.5e9),
    )  # fmt: skip
    show("atlas", "GPU-7", {"pcie": link}, used_bytes=1, total_bytes=2)
    found = card("atlas", "GPU-7")
    assert found.link == "PCIe 3, 8 lanes (7.9 GB/s)"
    assert "PCIe 4, 16 lanes (31.5 GB/s)" in found.link_words
    assert found.slow is not None


def test_memory_is_told_by_model_and_what_was_split_says_so(fleet, viewer):
    uses = (
        GpuModelUse(instance_id="a", model_id="qwen3-14b", used_bytes=6 * GIB, measured=True),
        GpuModelUse(instance_id="b", model_id="phi-4", used_bytes=2 * GIB),
    )
    show("atlas", "GPU-7", used_bytes=12 * GIB, total_bytes=24 * GIB, models=uses)
    found = card("atlas", "GPU-7")
    assert [(part.name, part.size, part.x, part.width) for part in found.parts] == [
        ("phi-4", "2 GiB", 0.0, 8.33), ("qwen3-14b", "6 GiB", 8.33, 25.0), ("other", "4 GiB", 33.33, 16.67),
    ]  # fmt: skip
    assert [bool(part.note) for part in found.parts] == [True, False, False]
    assert "split evenly" in text(viewer.client.get("/nodes/atlas/gpus"))


def test_a_card_that_shares_the_machines_memory_says_so(fleet):
    show("atlas", "GPU-7", {"shares_host_memory": True}, used_bytes=3 * GIB)
    Gpu.objects.filter(uuid="GPU-7").update(shares_host_memory=True)
    found = card("atlas", "GPU-7")
    assert found.total == "shared with the host"
    assert "3 GiB of host memory, by GPU processes" in found.memory.text


def test_processes_are_named_with_the_model_they_belong_to(fleet):
    Node.objects.filter(pk="atlas").update(engines=[{"instanceId": "i-1", "modelId": "phi-4", "state": "ready"}])
    told = (GpuProcess(pid=7, name="python3", used_bytes=GIB, instance_id="i-1"), GpuProcess(pid=8))
    show("atlas", "GPU-7", used_bytes=GIB, total_bytes=2 * GIB, processes=told, process_count=2)
    found = card("atlas", "GPU-7")
    assert found.processes is not None
    assert [(one.pid, one.name, one.size, one.owner) for one in found.processes] == [
        (7, "python3", "1 GiB", "phi-4"), (8, "name not reported", "not reported", ""),
    ]  # fmt: skip


def test_slices_are_named_after_their_card_and_a_card_that_is_gone_has_no_number(fleet):
    for number in (1, 2):
        show("atlas", f"MIG-{number}", {"parent_uuid": "GPU-9"}, used_bytes=1, total_bytes=2)
    Gpu.objects.filter(node="atlas", index=0).update(present=False, seen={})
    node = Node.objects.prefetch_related("gpus").get(pk="atlas")
    labels = [one.label for one in gpus.cards(node)]
    assert labels[-3:] == ["GPU 7 · slice 1", "GPU 7 · slice 2", "GPU —"]


def test_what_a_silent_node_last_said_is_not_shown_as_how_it_is(fleet):
    assert {one.badge.label for one in gpus.cards(Node.objects.prefetch_related("gpus").get(pk="borealis"))} == {
        "Last known"
    }


# ---------------------------------------------------------------- charts


def drawn(values: history.Values, **also) -> history.History:
    count = len(values)
    start = clock.now().replace(minute=0, second=0, microsecond=0) - timedelta(minutes=count)
    nothing = (None,) * count
    told = {"total": (24.0 * GIB,) * count, "used": values, "peak": values, "busy": nothing, "power": nothing}
    one = history.GpuHistory("GPU-1", 0, "RTX", True, heat=nothing, models={}, **(told | also))
    host = {"used": nothing, "total": nothing, "cpu": nothing, "peak": nothing}
    times = tuple(start + timedelta(minutes=number) for number in range(count))
    samples = tuple(0 if value is None else 4 for value in values)
    return history.History("pc-1", start, start + timedelta(minutes=count), 60, times, samples, host, (one,))


def test_a_gap_breaks_the_area_and_reads_not_known_in_the_table():
    found = {chart.id: chart for chart in charts.charts(drawn((12.0 * GIB, None, 24.0 * GIB)))}
    memory = found["memory-GPU-1"]
    assert memory.series[0].path == "M0.0 119.0V60.0H240.0V119.0H0.0ZM480.0 119.0V1.0H720.0V119.0H480.0Z"
    assert [row[1] for row in memory.rows] == [("24 GiB",), ("no data",), ("12 GiB",)]
    assert found["host-cpu"].empty


def test_a_value_alone_between_gaps_is_still_seen():
    found = {chart.id: chart for chart in charts.charts(drawn((1.0, 1.0, 1.0), busy=(None, 50.0, None)))}
    assert found["gpu-use"].series[0].path == "M288.0 60.0H432.0"
    assert "gpu-power" not in found, "nothing was told of it"


@pytest.mark.parametrize("hours", ["1", "6", "24", "168", "720", "5", "x", ""])
def test_a_history_opens_for_each_period_and_for_nonsense(fleet, viewer, hours):
    page = viewer.client.get(reverse("nodes:history", args=["atlas"]), {"hours": hours})
    assert page.status_code == 200
    assert b"No data in the last" in page.content


def test_a_history_of_a_node_that_is_not_there_is_404(viewer):
    assert viewer.client.get(reverse("nodes:history", args=["nobody"])).status_code == 404


# ---------------------------------------------------------------- engines without a place


def test_a_node_tells_engines_that_have_no_place_there(fleet, viewer):
    placed = str(seed.Placement.objects.get(model="qwen3-14b").pk)
    told = [
        {"instanceId": placed, "modelId": "qwen3-14b", "state": "ready"},
        {"instanceId": "i-2", "modelId": "draft-idea", "state": "ready"},
        {"instanceId": "i-3", "modelId": "of-another-master", "state": "loading"},
        {"instanceId": "i-4", "modelId": "gone", "state": "exited"},
    ]
    Node.objects.filter(pk="atlas").update(engines=told)
    shown = text(viewer.client.get(reverse("models:of-node", args=["atlas"])))
    assert "Orphaned engines" in shown
    assert "draft-idea Runs here without a placement (ready)" in shown
    assert "of-another-master is unknown to this master" in shown
    assert "gone" not in shown
    Node.objects.filter(pk="atlas").update(engines=told[:1])
    assert "Orphaned engines" not in text(viewer.client.get(reverse("models:of-node", args=["atlas"])))
