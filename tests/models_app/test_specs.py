"""The spec that a node is asked to run, and the hash that says whether a running engine is up to date."""

import pytest

from mirbad.kernel import conf
from models_app import registry
from models_app.artifacts.defaults import default_image
from models_app.errors import ImageMissing
from models_app.models import Placement
from nodes.models import Gpu, Node
from tests.models_app.things import DIGEST, PERSON, definition, gpu, model_data, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]

CONTAINER = {"runtime": "vllm", "delivery": "container", "sources": [{"folder": "org/tiny"}]}


def spec_of(**fields):
    placed(**fields)
    return registry.launch_spec(Placement.objects.get(), Node.objects.get())


def image(settings_image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = conf.settings().model_copy(update={"engine_image": settings_image})
    monkeypatch.setattr("models_app.artifacts.defaults.settings", lambda: value)


def test_the_spec_says_all_that_the_definition_does() -> None:
    node("pc-1", gpu("GPU-a"))
    spec = spec_of(
        **CONTAINER,
        servedNames=["org/tiny", "tiny"],
        args=["--max-model-len", "4096"],
        env={"TZ": "UTC"},
        secretEnv={"HF_TOKEN": "hf_canary12345"},
        image="registry/vllm:1",
        imageDigest=DIGEST,
        contextLength=4096,
        gpuMemoryBudgetBytes=10,
        startTimeoutSeconds=60,
        placement={"nodeId": "pc-1", "gpuUuids": ["GPU-a"]},
    )
    wire = spec.to_wire()
    assert wire["servedNames"] == ["org/tiny", "tiny"]
    assert wire["secretEnv"] == {"HF_TOKEN": "hf_canary12345"}
    assert wire["source"] == {"folder": "org/tiny", "file": None, "projector": None}
    assert (wire["image"], wire["imageDigest"], wire["gpuUuids"]) == ("registry/vllm:1", DIGEST, ["GPU-a"])
    assert (wire["contextLength"], wire["gpuMemoryBudgetBytes"], wire["startTimeoutSeconds"]) == (4096, 10, 60)
    assert "canary" not in repr(spec)


def test_an_image_comes_from_the_model_then_the_node_then_the_master(monkeypatch) -> None:
    node("pc-1", default_image="node/vllm", default_image_digest=DIGEST)
    image("master/vllm@sha256:" + "b" * 64, monkeypatch)
    own = spec_of(**CONTAINER, image="own/vllm:2")
    assert (own.image, own.image_digest) == ("own/vllm:2", None), "the node's digest is not of this image"
    registry.update("tiny", model_data(**CONTAINER), PERSON)
    spec = registry.launch_spec(Placement.objects.get(), Node.objects.get())
    assert (spec.image, spec.image_digest) == ("node/vllm", DIGEST)
    Node.objects.update(default_image="", default_image_digest="")
    spec = registry.launch_spec(Placement.objects.get(), Node.objects.get())
    assert (spec.image, spec.image_digest) == ("master/vllm", "sha256:" + "b" * 64)


def test_llama_cpp_has_a_default_image_of_its_own() -> None:
    other = "sha256:" + "b" * 64
    node("pc-1", default_image="node/vllm", default_llama_image="node/llama", default_llama_image_digest=other)
    stands = Node.objects.get()
    assert default_image(stands, "llama.cpp") == ("node/llama", other)
    assert default_image(stands, "vllm") == ("node/vllm", "")
    stands.default_llama_image = ""
    assert default_image(stands, "llama.cpp") == ("", "")


def test_a_container_without_any_image_is_told_before_it_starts(monkeypatch) -> None:
    node("pc-1")
    image("", monkeypatch)
    with pytest.raises(ImageMissing):
        spec_of(**CONTAINER)


def test_a_process_carries_no_image() -> None:
    node("pc-1", default_image="node/vllm", default_image_digest=DIGEST)
    spec = spec_of()
    assert (spec.image, spec.image_digest) == (None, None)


BASE = {"runtime": "llama.cpp", "delivery": "process", "sources": [{"folder": "tiny"}], "secretEnv": {"HF_TOKEN": "1"}}


@pytest.mark.parametrize(
    ("change", "restarts"),
    [
        ({"args": ["-c", "1"]}, True),
        ({"env": {"TZ": "UTC"}}, True),
        ({"secretEnv": {"HF_TOKEN": "2"}}, True),
        ({"servedNames": ["x"]}, True),
        ({"contextLength": 1}, True),
        ({"gpuMemoryBudgetBytes": 1}, True),
        ({"hostMemoryBudgetBytes": 1}, True),
        ({"sources": [{"folder": "other"}]}, True),
        ({"sources": [{"folder": "tiny", "file": "x.gguf"}]}, True),
        ({"runtime": "sim", "sources": []}, True),
        ({"delivery": "container"}, True),
        ({"displayName": "x"}, False),
        ({"tags": ["x"]}, False),
        ({"autoStart": True}, False),
        ({"idleTimeoutSeconds": 1}, False),
        ({"secretEnv": {"HF_TOKEN": None}}, False),
        ({"secretEnv": {"HF_TOKEN": "1"}}, False),
    ],
)
def test_the_hash_changes_with_what_changes_the_engine_and_with_nothing_else(change, restarts) -> None:
    node("pc-1")
    placement = placed(**BASE)

    def now() -> str:
        return registry.config_hash(definition(), Placement.objects.get(pk=placement.pk), Node.objects.get())

    before = now()
    registry.update("tiny", model_data(**{**BASE, "secretEnv": {"HF_TOKEN": None}, **change}), PERSON)
    assert (now() != before) is restarts


def test_the_nodes_default_image_is_part_of_the_hash() -> None:
    node("pc-1")
    placement = placed(**CONTAINER)
    before = registry.config_hash(definition(), placement, Node.objects.get())
    Node.objects.update(default_image="node/vllm")
    assert registry.config_hash(definition(), placement, Node.objects.get()) != before


def test_the_nodes_settings_go_to_the_agent_with_each_launch() -> None:
    machine = node("pc-1", gpu("GPU-a"), gpu("GPU-b"), memory_reserve_bytes=5, max_concurrent_starts=2)
    Gpu.objects.create(node=machine, uuid="GPU-a", reserve_bytes=7)
    Gpu.objects.create(node=machine, uuid="GPU-b", reserve_bytes=9)
    placement = placed(**CONTAINER, image="own/vllm:2", placement={"nodeId": "pc-1", "gpuUuids": ["GPU-a"]})
    before = registry.config_hash(definition(), placement, machine)
    spec = registry.launch_spec(placement, machine)
    assert (spec.host_reserve_bytes, spec.gpu_reserve_bytes, spec.max_concurrent_starts) == (5, {"GPU-a": 7}, 2)
    machine.memory_reserve_bytes = None
    assert registry.config_hash(definition(), placement, machine) == before, "no restart is needed for them"
