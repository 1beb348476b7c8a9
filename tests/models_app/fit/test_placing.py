"""Ranking, previews and placing on rows: fresh numbers, promises, the model's own memory, and the second look."""

from datetime import timedelta
from typing import Any

import pytest

from agent.wire.capability import Feature, FolderFile, ModelFolder
from agent.wire.status import GpuStatus, HostStatus, NodeStatus
from mirbad.kernel import clock
from mirbad.kernel.errors import NotFound
from models_app import registry
from models_app.errors import ModelPlaced, NoPlace
from models_app.fit import serve_plan
from models_app.fit.verdict import FitState
from models_app.models import ModelDefinition, Placement
from models_app.placement import apply, auto_place, candidates, fit_preview, snapshot
from models_app.placement.workload import of_input, of_model
from nodes.errors import NodeOffline
from nodes.models import Gpu, Node
from tests.models_app.fit.public import MODELS
from tests.models_app.things import GIB, PERSON, capabilities, definition, gpu, model_data, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]
FOLDER = ModelFolder(name="m", files=(FolderFile(path="model.safetensors", size_bytes=5),))
FACTS = next(model for model in MODELS if "TinyLlama" in model.name).folder()
HOST = {"memoryTotalBytes": 64 * GIB, "memoryAvailableBytes": 50 * GIB}


def machine(node_id: str, *cards: float, folders=(FOLDER,), **columns: Any) -> Node:
    """A node that reported just now, with so many GiB free on each of its cards of 24."""
    gpus = tuple(gpu(f"{node_id}-{at}") for at in range(len(cards)))
    features = (Feature.GPUS_UUIDS, Feature.FOLDER_SHAPES) if cards else (Feature.FOLDER_SHAPES,)
    caps = capabilities(*gpus, features=features, folders=folders, allow_tag_pulls=True)
    row = node(
        node_id,
        caps=caps,
        **({"host": HOST, "status_at": clock.now(), "boot_id": node_id, "default_image": "vllm/vllm-openai"} | columns),
    )
    for at, free in enumerate(cards):
        seen = {"uuid": f"{node_id}-{at}", "totalBytes": 24 * GIB, "usedBytes": int((24 - free) * GIB)}
        Gpu.objects.create(
            node=row, uuid=f"{node_id}-{at}", index=at, name="RTX 4090", memory_bytes=24 * GIB, seen=seen
        )
    return row


@pytest.fixture(autouse=True)
def link(monkeypatch) -> list[str]:
    """Nodes tell the shape of the weights, and no status unless a test says so."""
    asked: list[str] = []

    def call(node_id: str, method: str, path: str, body: Any = None, *, answer: Any, **_: Any) -> Any:
        asked.append(f"{node_id} {path.partition('?')[0]}")
        if path == "status":
            raise NodeOffline(f"Node {node_id} cannot be reached.")
        return FACTS

    monkeypatch.setattr("nodes.link.client.call", call)
    return asked


def vllm(model_id: str = "chat", **fields: Any):
    fields = {"runtime": "vllm", "delivery": "container", "sources": [{"folder": "m"}]} | fields
    return model_data(model_id, **fields)


def unplaced(**fields: Any) -> ModelDefinition:
    place = {"nodeId": Node.objects.filter(draining=False).first().pk}
    registry.create(model_data("chat", **({"placement": place} | fields)), PERSON)
    Placement.objects.all().delete()
    return definition("chat")


def test_a_definition_that_is_not_stored_is_ranked(link) -> None:
    machine("full", 2, 3)
    machine("free", 23, 23)
    found = candidates.rank(vllm())
    assert [(candidate.node_id, len(candidate.gpu_uuids)) for candidate in found.candidates] == [("free", 1)]
    assert [(rejection.node_id, rejection.code) for rejection in found.rejections] == [("full", "memory_short")]


def test_a_node_where_it_stands_is_no_place_for_another_of_it() -> None:
    machine("a")
    machine("b")
    placed("tiny", "a")
    assert [candidate.node_id for candidate in candidates.rank("tiny").candidates] == ["b"]
    with pytest.raises(NotFound):
        candidates.rank("nobody")


def test_statements_do_not_grow_with_the_fleet(django_assert_max_num_queries) -> None:
    for number in range(3):
        machine(f"n-{number}", 23, 23)
    candidates.rank(vllm())
    with django_assert_max_num_queries(6):
        candidates.rank(vllm())
    for number in range(3, 30):
        machine(f"n-{number}", 23, 23)
    candidates.rank(vllm())
    with django_assert_max_num_queries(6):
        assert len(candidates.rank(vllm()).candidates) == 30


def test_what_is_to_start_was_promised_its_budget() -> None:
    machine("a", 23)
    placed("other", "a", runtime="vllm", delivery="container", sources=[{"folder": "m"}],
           gpuMemoryBudgetBytes=20 * GIB, hostMemoryBudgetBytes=5 * GIB,
           placement={"nodeId": "a", "gpuUuids": ["a-0"]})  # fmt: skip
    small = vllm(args=["--gpu-memory-utilization", "0.5"])
    assert candidates.rank(small).best is not None, "a model that is stopped takes nothing"
    Placement.objects.update(desired="running", observed="starting")
    assert candidates.rank(small).best is None
    (line, host) = fit_preview.on_node(of_input(small), "a", ["a-0"]).verdict.lines
    assert (line.capacity.promised, host.capacity.promised) == (20 * GIB, 5 * GIB)
    Placement.objects.update(observed="ready")
    assert candidates.rank(small).best is not None, "memory of a running model is no longer free"


def test_the_reserves_of_node_and_card_are_left_alone() -> None:
    machine("a", 23, memory_reserve_bytes=30 * GIB)
    Gpu.objects.update(reserve_bytes=8 * GIB)
    (card, host) = fit_preview.on_node(of_input(vllm()), "a", ["a-0"]).verdict.lines
    assert (card.capacity.usable, host.capacity.usable) == (15 * GIB, 20 * GIB)


def test_numbers_within_five_seconds_are_taken_and_older_ones_asked_for_again(link, monkeypatch) -> None:
    machine("a", 23)
    found = fit_preview.on_node(of_input(vllm()), "a", ["a-0"])
    assert found.state is FitState.FITS
    assert found.age_seconds < 5
    assert "a status" not in link
    Node.objects.update(status_at=clock.now() - timedelta(seconds=6))
    found = fit_preview.on_node(of_input(vllm()), "a", ["a-0"])
    assert "a status" in link
    assert (found.state, found.age_seconds) == (FitState.UNKNOWN, None)
    now = NodeStatus(
        boot_id="b", seq=1, capabilities_seq=1, time="2026-01-01T00:00:00Z", held_claim=None,
        host=HostStatus(memory_total_bytes=64 * GIB, memory_available_bytes=40 * GIB),
        gpus=(GpuStatus(uuid="a-0", total_bytes=24 * GIB, used_bytes=20 * GIB),),
    )  # fmt: skip
    monkeypatch.setattr("nodes.link.client.call", lambda *args, **_: now if args[2] == "status" else FACTS)
    found = fit_preview.on_node(of_input(vllm()), "a", ["a-0"])
    assert (found.state, found.age_seconds) == (FitState.DOES_NOT_FIT, 0.0)
    assert found.verdict.lines[0].capacity.usable == 4 * GIB


def test_what_the_model_has_there_itself_is_free_for_its_restart() -> None:
    machine("a", 3)
    placement = placed("chat", "a", runtime="vllm", delivery="container", sources=[{"folder": "m"}],
                       placement={"nodeId": "a", "gpuUuids": ["a-0"]})  # fmt: skip
    use = {"instanceId": "i", "modelId": "chat", "usedBytes": 20 * GIB}
    Gpu.objects.update(seen=Gpu.objects.get().seen | {"models": [use]})
    assert fit_preview.on_node(of_model(definition("chat")), "a", ["a-0"]).state is FitState.DOES_NOT_FIT
    Placement.objects.filter(pk=placement.pk).update(observed="ready", observed_view={"memoryBytes": 2 * GIB})
    found = fit_preview.on_node(of_model(definition("chat")), "a", None)
    assert found.gpu_uuids == ("a-0",)
    assert found.state is FitState.FITS


def test_a_card_that_is_gone_is_a_problem_and_unknown_and_a_renumbering_changes_nothing() -> None:
    machine("a", 23, 1)
    Gpu.objects.filter(uuid="a-0").update(index=1)
    Gpu.objects.filter(uuid="a-1").update(index=0)
    found = fit_preview.on_node(of_input(vllm()), "a", ["a-0"])
    assert (found.verdict.lines[0].capacity.label, found.state) == ("GPU 1", FitState.FITS)
    found = fit_preview.on_node(of_input(vllm()), "a", ["gone"])
    assert found.verdict.lines[0].capacity.label == "GPU — · no longer on a"
    assert [problem.code for problem in found.problems] == ["gpu_unknown"]
    assert found.state is FitState.UNKNOWN


def test_a_processor_that_takes_minutes_is_asked_about() -> None:
    machine("slow", host=HOST | {"memoryBandwidthBytesPerSecond": 2 * 10**9})
    llama = vllm(runtime="llama.cpp", delivery="process")
    found = fit_preview.on_node(of_input(llama), "slow")
    assert found.state is FitState.FITS
    assert found.is_slow
    assert "about 0.6 tokens/s: a reply of 400 takes about 11 minutes." in found.questions[0]
    Node.objects.update(host=HOST | {"memoryBandwidthBytesPerSecond": 40 * 10**9})
    assert fit_preview.on_node(of_input(llama), "slow").questions == ()
    Node.objects.update(host=HOST)
    assert fit_preview.on_node(of_input(llama), "slow").tokens_per_second is None


def test_it_is_placed_on_the_best_node() -> None:
    machine("busy", 10)
    machine("idle", 23, 23)
    unplaced(runtime="vllm", delivery="container", sources=[{"folder": "m"}],
             placement={"nodeId": "idle", "gpuUuids": ["idle-0"]})  # fmt: skip
    placement, candidate = auto_place.place("chat", PERSON)
    assert (placement.node_id_text, placement.gpu_uuids) == ("idle", ["idle-0"])
    assert candidate.why[0] == "fits on GPU 0"
    with pytest.raises(ModelPlaced):
        auto_place.place("chat", PERSON)


def test_what_changed_between_plan_and_write_sends_it_to_the_next_node(monkeypatch) -> None:
    machine("first")
    machine("second")
    unplaced()
    taken = snapshot.take

    def changed(node_ids=None):
        if node_ids is not None:
            low = HOST | {"memoryAvailableBytes": 4 * GIB}
            Node.objects.filter(pk="first").update(host=low)
        return taken(node_ids)

    monkeypatch.setattr(snapshot, "take", changed)
    placement, _ = auto_place.place("chat", PERSON)
    assert placement.node_id_text == "second"


def test_without_a_place_each_node_says_why_and_nothing_is_written() -> None:
    machine("a", draining=True)
    machine("b", host={"memoryTotalBytes": 64 * GIB, "memoryAvailableBytes": GIB})
    machine("c", reachability="offline", reachability_reason="No answer for 15 s.")
    unplaced()
    with pytest.raises(NoPlace) as error:
        auto_place.place("chat", PERSON)
    assert {(item["field"], item["code"]) for item in error.value.problems} == {
        ("a", "node_draining"), ("b", "memory_short"), ("c", "node_offline"),
    }  # fmt: skip
    assert not Placement.objects.exists()


def test_an_unknown_fit_places_nothing_by_itself() -> None:
    machine("a", 23, folders=())
    unplaced(runtime="vllm", delivery="container", sources=[{"folder": "m"}],
             placement={"nodeId": "a", "gpuUuids": ["a-0"]})  # fmt: skip
    with pytest.raises(NoPlace, match="Fit unknown"):
        auto_place.place("chat", PERSON)


def test_a_start_is_admitted_by_the_need_that_the_preview_showed() -> None:
    row = machine("a")
    llama = {"runtime": "llama.cpp", "delivery": "process", "sources": [{"folder": "m"}], "contextLength": 2048}
    placement = placed("chat", "a", **llama)
    placement.model.refresh_from_db()
    before = registry.launch_spec(placement, row)
    assert (before.estimate.host_bytes, before.host_memory_budget_bytes) == (None, None), "nothing is known yet"
    found = fit_preview.on_node(of_model(definition("chat")), "a")
    assert registry.launch_spec(placement, row).estimate.host_bytes == found.estimate.host_bytes
    ModelDefinition.objects.update(host_memory_budget_bytes=3 * GIB)
    placement.model.refresh_from_db()
    spec = registry.launch_spec(placement, row)
    assert (spec.host_memory_budget_bytes, spec.estimate.host_bytes) == (3 * GIB, 3 * GIB)


def on_cards(*uuids: str, **fields: Any) -> Placement:
    return placed("chat", "a", runtime="vllm", delivery="container", sources=[{"folder": "m"}],
                  placement={"nodeId": "a", "gpuUuids": list(uuids)}, **fields)  # fmt: skip


def test_a_start_on_gpus_takes_the_estimate_of_each_card_along(link) -> None:
    row = machine("a", 23, 23)
    placement = on_cards("a-0", "a-1")
    assert registry.launch_spec(placement, row).estimate.gpu_bytes is None
    assert link == [], "no node is called within a request"
    spec = registry.launch_spec(placement, row, ask=True)
    need = fit_preview.on_node(of_model(definition("chat")), "a", ("a-0", "a-1")).estimate
    assert (need.gpu_bytes or 0) > GIB
    assert (spec.estimate.gpu_bytes, spec.estimate.host_bytes) == (need.gpu_bytes, need.host_bytes)
    assert (spec.estimate.fraction, spec.gpu_memory_budget_bytes) == (0.9, None)
    assert fit_preview.promise_of(spec.estimate, placement.gpu_uuids, row) == {
        "a-0": int(24 * GIB * 0.9), "a-1": int(24 * GIB * 0.9), "": need.host_bytes,
    }  # fmt: skip


def test_a_shard_takes_its_part_of_the_model_along() -> None:
    row = machine("a", 23, 23)
    placement = on_cards("a-0", "a-1")
    whole = registry.launch_spec(placement, row, ask=True).estimate
    placement.shards = 2
    part = registry.launch_spec(placement, row, ask=True).estimate
    assert part.host_bytes == whole.host_bytes
    assert part.gpu_bytes < whole.gpu_bytes
    assert part.fraction == 0.9


def test_the_estimate_of_a_model_that_starts_is_promised_and_that_of_a_stopped_one_is_not() -> None:
    row = machine("a", 23)
    placement = on_cards("a-0")
    spec = registry.launch_spec(placement, row, ask=True)
    promised = fit_preview.promise_of(spec.estimate, placement.gpu_uuids, row)
    apply.note_promise(placement, promised)
    taken = lambda **without: snapshot.take(["a"], **without).machines[0]  # noqa: E731 - one word for both looks
    assert (taken().cards[0].capacity.promised, taken().host.promised) == (0, 0)
    Placement.objects.update(desired="running", observed="starting")
    assert (taken().cards[0].capacity.promised, taken().host.promised) == (promised["a-0"], promised[""])
    assert taken(without="chat").cards[0].capacity.promised == 0, "it is not judged against itself"
    rejected = {one.node_id: one.code for one in candidates.rank(vllm("another")).rejections}
    assert rejected == {"a": "memory_short"}
    Placement.objects.update(observed="ready")
    assert taken().cards[0].capacity.promised == 0, "its memory is in use by now"


@pytest.mark.parametrize(
    ("host", "args", "runtime", "rate"),
    [
        ({"engineThreads": 1}, (), "llama.cpp", 10),
        ({"engineThreads": 3}, (), "llama.cpp", 30),
        ({"engineThreads": 63}, (), "llama.cpp", 80),
        ({"engineThreads": 63}, ("-t", "2"), "llama.cpp", 20),
        ({"engineThreads": 1}, ("--threads=4",), "llama.cpp", 40),
        ({}, (), "llama.cpp", 80),
        ({"engineThreads": 1}, (), "vllm", 80),
    ],
)
def test_the_speed_on_a_processor_goes_by_the_threads_that_the_engine_gets(host, args, runtime, rate) -> None:
    rates = {"memoryBandwidthBytesPerSecond": 80, "coreBandwidthBytesPerSecond": 10}
    machine("a", host=HOST | rates | host)
    (found,) = snapshot.take(["a"]).machines
    assert found.rate(serve_plan(runtime, args)) == rate
    assert fit_preview._observed(found, HOST | rates | host, {}).rate(serve_plan(runtime, args)) == rate
