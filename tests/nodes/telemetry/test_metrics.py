"""Figures of nodes and GPUs for Prometheus."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from agent.wire.status import GpuModelUse, GpuStatus, HostStatus
from mirbad.kernel import clock
from nodes import metrics
from nodes.models import Gpu, Node

pytestmark = [pytest.mark.app, pytest.mark.django_db]


def read() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def of(figure: str, /, **labels: str) -> float | None:
    return read().get((f"mirbad_node_{figure}", tuple(sorted(labels.items()))))


def add(node_id: str, *, age: int = 1, gpus: int = 1, **columns) -> Node:
    host = HostStatus(memory_total_bytes=8, memory_available_bytes=5, cpu_percent=25.0)
    now = clock.now()
    told = {"lifecycle": "approved", "reachability": "online", "host": host.to_wire()}
    told |= {"status_at": now - timedelta(seconds=age), "last_seen_at": now}
    node = Node.objects.create(id=node_id, address="192.0.2.1", **(told | columns))
    for index in range(gpus):
        uses = (
            GpuModelUse(instance_id="1", model_id="qwen", used_bytes=3, measured=True),
            GpuModelUse(instance_id="2", model_id="qwen", used_bytes=4, measured=True),
            GpuModelUse(instance_id="3", model_id="phi"),
        )
        seen = GpuStatus(uuid=f"GPU-{index}", used_bytes=7, total_bytes=24, utilization_percent=50.0, models=uses)
        Gpu.objects.create(node=node, uuid=f"GPU-{index}", index=index, name='A "card"', seen=seen.to_wire())
    return node


def test_nodes_and_cards_have_figures_in_base_units():
    add("pc-1")
    assert of("online", node="pc-1") == 1
    assert of("memory_available_bytes", node="pc-1") == 5
    assert of("cpu_ratio", node="pc-1") == 0.25
    assert of("gpu_memory_used_bytes", node="pc-1", gpu="GPU-0") == 7
    assert of("gpu_utilization_ratio", node="pc-1", gpu="GPU-0") == 0.5
    assert of("gpu_model_memory_bytes", node="pc-1", gpu="GPU-0", model="qwen") == 7
    assert of("gpu_info", node="pc-1", gpu="GPU-0", index="0", name='A "card"') == 1


def test_what_is_unknown_has_no_figure():
    add("pc-1")
    assert of("gpu_power_watts", node="pc-1", gpu="GPU-0") is None
    assert of("disk_free_bytes", node="pc-1") is None
    assert of("gpu_model_memory_bytes", node="pc-1", gpu="GPU-0", model="phi") is None


@pytest.mark.parametrize("columns", [{"age": 60}, {"reachability": "offline"}])
def test_a_node_that_is_not_heard_shows_no_old_figures(columns):
    add("pc-1", **columns)
    names = {name for name, _ in read()}
    assert names <= {"mirbad_node_online", "mirbad_node_info", "mirbad_node_last_seen_timestamp_seconds"}


def test_a_lost_card_does_not_work():
    node = add("pc-1")
    Gpu.objects.filter(node=node).update(seen=GpuStatus(uuid="GPU-0", lost=True, problem="lost").to_wire())
    assert of("gpu_working", node="pc-1", gpu="GPU-0") == 0
    assert of("gpu_memory_used_bytes", node="pc-1", gpu="GPU-0") is None


def test_labels_are_bounded_and_nodes_that_wait_or_are_gone_have_none():
    add("pc-1", gpus=metrics.MOST_GPUS + 5)
    add("pc-2", lifecycle="pending")
    add("pc-3", lifecycle="revoked")
    uses = tuple(GpuModelUse(instance_id=str(n), model_id=f"m{n}", used_bytes=1) for n in range(40))
    Gpu.objects.filter(node="pc-1", index=0).update(seen=GpuStatus(uuid="GPU-0", models=uses).to_wire())
    found = read()
    assert sum(name == "mirbad_node_gpu_info" for name, _ in found) == metrics.MOST_GPUS
    told = [labels for name, labels in found if name == "mirbad_node_gpu_model_memory_bytes"]
    assert sum(dict(labels)["gpu"] == "GPU-0" for labels in told) == metrics.MOST_MODELS
    assert {dict(labels)["node"] for _, labels in found} == {"pc-1"}


def test_a_scrape_costs_two_statements_however_large_the_fleet():
    for number in range(12):
        add(f"pc-{number}")
    with CaptureQueriesContext(connection) as seen:
        metrics.render()
    assert len(seen) == 2
