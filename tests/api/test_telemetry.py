"""``/api/nodes/{id}/gpus`` and ``/api/nodes/{id}/telemetry``."""

from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent.wire.capability import GpuCapability, PcieLink
from agent.wire.status import GpuModelUse, GpuProcess, GpuStatus, HostStatus, NodeStatus
from jobs.loops import reports
from nodes import reachability
from nodes.models import Gpu, Node
from tests.pages import seed

pytestmark = [pytest.mark.app, pytest.mark.django_db]

GIB = 2**30
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SLOW = PcieLink(lanes=8, card_lanes=16, generation=4, card_generation=4, bytes_per_second=1, card_bytes_per_second=2)


@pytest.fixture
def node():
    row = seed.node("pc-1", "")
    told = GpuCapability(
        uuid="GPU-1", index=0, name="RTX", memory_bytes=24 * GIB, shares_host_memory=False, compute_capability="8.9",
        driver_version="580.1", pci_address="0000:41:00.0", pcie=SLOW,
    )  # fmt: skip
    lost = GpuCapability(uuid="GPU-2", index=1, name="RTX", lost=True, problem="GPU 1 is lost.")
    capabilities = seed._capabilities("pc-1", (told, lost), ())
    reachability.observe_capabilities("pc-1", capabilities, 1)
    Gpu.objects.filter(uuid="GPU-1").update(reserve_bytes=2 * GIB)
    return row


def hear(at: datetime, seq: int, **changes) -> None:
    use = GpuModelUse(instance_id="i", model_id="qwen", used_bytes=5 * GIB, measured=True)
    values = {"used_bytes": 10 * GIB, "total_bytes": 24 * GIB, "utilization_percent": 40.0, "models": (use,)}
    values |= {"processes": (GpuProcess(pid=7, name="python3", used_bytes=5 * GIB, instance_id="i"),)}
    gpus = (GpuStatus(uuid="GPU-1", **(values | changes)), GpuStatus(uuid="GPU-2", lost=True, problem="GPU 1 is lost."))
    status = NodeStatus(
        boot_id="b", seq=seq, capabilities_seq=1, time="", held_claim=None, gpus=gpus,
        host=HostStatus(memory_total_bytes=8 * GIB, memory_available_bytes=6 * GIB),
    )  # fmt: skip
    reports.write({"pc-1": (status, at)})


def test_each_card_is_told_with_what_is_left_of_it(node, viewer):
    hear(NOON, 1)
    with time_machine.travel(NOON + timedelta(seconds=3), tick=False):
        body = viewer.client.get("/api/nodes/pc-1/gpus").json()
    assert (body["nodeId"], body["ageSeconds"], body["gpuProblem"]) == ("pc-1", 3.0, None)
    works, lost = body["gpus"]
    assert (works["usedBytes"], works["freeBytes"], works["headroomBytes"]) == (10 * GIB, 14 * GIB, 12 * GIB)
    assert works["pcie"]["isSlow"]
    assert works["models"] == [{"modelId": "qwen", "instanceId": "i", "usedBytes": 5 * GIB, "measured": True}]
    assert (works["computeCapability"], works["pciAddress"], works["powerWatts"]) == ("8.9", "0000:41:00.0", None)
    assert (lost["lost"], lost["problem"], lost["usedBytes"], lost["freeBytes"]) == (True, "GPU 1 is lost.", None, None)
    assert lost["processes"] is None


def test_a_card_that_is_gone_keeps_what_it_is_and_tells_nothing(node, viewer):
    hear(NOON, 1)
    capabilities = seed._capabilities("pc-1", (), ())
    reachability.observe_capabilities("pc-1", capabilities, 2)
    card = viewer.client.get("/api/nodes/pc-1/gpus").json()["gpus"][0]
    assert (card["present"], card["memoryBytes"], card["reserveBytes"]) == (False, 24 * GIB, 2 * GIB)
    assert (card["usedBytes"], card["headroomBytes"], card["utilizationPercent"]) == (None, None, None)


def test_history_has_even_steps_and_gaps(node, viewer):
    for second in (0, 15, 45):
        hear(NOON + timedelta(seconds=second), second + 1)
    with time_machine.travel(NOON + timedelta(minutes=1), tick=False):
        body = viewer.client.get("/api/nodes/pc-1/telemetry?from=2026-03-01T12:00:00Z&step=15").json()
    assert body["times"] == [f"2026-03-01T12:00:{second:02}Z" for second in (0, 15, 30, 45)]
    gpu = next(gpu for gpu in body["gpus"] if gpu["uuid"] == "GPU-1")
    assert gpu["usedBytes"] == [10 * GIB, 10 * GIB, None, 10 * GIB]
    assert gpu["models"] == [{"modelId": "qwen", "usedBytes": [5 * GIB, 5 * GIB, None, 5 * GIB]}]
    assert gpu["powerWatts"] == [None] * 4
    assert body["samples"] == [1, 1, 0, 1]
    assert body["host"]["usedBytes"] == [2 * GIB, 2 * GIB, None, 2 * GIB]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("from=yesterday", "from"),
        ("from=2026-03-01T11:00:00", "from"),
        ("to=2026-13-01T11:00:00Z", "to"),
        ("from=2026-03-01T12:00:00Z&to=2026-03-01T11:00:00Z", "from"),
        ("from=2027-03-01T12:00:00Z", "from"),
        ("step=0", "step"),
        ("step=1", "step"),
        ("step=86401", "step"),
        ("step=1.5", "step"),
        ("step=-60", "step"),
        ("from=2026-02-01T12:00:00Z&step=60", "step"),
        ("from=2025-01-01T12:00:00Z&step=3600", "step"),
    ],
)
def test_a_time_that_cannot_be_answered_is_refused_with_its_bound(node, viewer, query, field):
    with time_machine.travel(NOON, tick=False):
        answer = viewer.client.get(f"/api/nodes/pc-1/telemetry?{query}")
    assert answer.status_code == 400
    body = answer.json()
    assert (body["code"], body["problems"][0]["field"]) == ("invalid_request", field)


@pytest.mark.parametrize("path", ["gpus", "telemetry"])
def test_a_node_that_is_not_there_is_404_and_a_stranger_is_kept_out(node, viewer, stranger, anybody, path):
    assert viewer.client.get(f"/api/nodes/nobody/{path}").status_code == 404
    assert stranger.client.get(f"/api/nodes/pc-1/{path}").status_code == 403
    assert anybody.get(f"/api/nodes/pc-1/{path}").status_code == 401


@pytest.mark.parametrize("path", ["gpus", "telemetry"])
def test_more_cards_cost_no_more_statements(node, viewer, path):
    def cost() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert viewer.client.get(f"/api/nodes/pc-1/{path}").status_code == 200
        return len(seen)

    cost()
    few = cost()
    for index in range(2, 20):
        Gpu.objects.create(node=Node.objects.get(pk="pc-1"), uuid=f"GPU-{index + 1}", index=index)
    assert cost() == few
