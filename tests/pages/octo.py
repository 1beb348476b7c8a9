"""A fleet for the editor's placement: a machine of eight cards of two kinds, a small one, one that drains, one away."""

from datetime import timedelta

from agent.wire.shape import FolderShape, SafetensorsFile
from mirbad.kernel import clock
from models_app.artifacts import shapes
from models_app.models import ModelSource, Placement
from models_app.placement import snapshot
from nodes.models import Gpu, Node
from tests.pages import seed

GIB = seed.GIB
CONFIG = """{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 40,
 "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 5120,
 "intermediate_size": 17408, "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16"}"""
USED_GIB = (46.2, 9.5, 2.1, 44.0, 1.2, 1.2, 0.6, 12.0)


def fleet() -> None:
    """The machines, models on them, and the shape of the weights as one of them told it."""
    seed.node("atlas", "Atlas", gpus=4)
    _eight("octo", "Octo")
    seed.node("cirrus", "Cirrus", gpus=1, draining=True)
    seed.node(
        "borealis", "Borealis", gpus=2, seen_seconds=260, reachability="offline",
        reachability_reason="No answer for 15 s: the connection timed out.",
    )  # fmt: skip
    seed.node("local", "", gpus=0, is_bootstrap=True)
    seed.model("qwen3-14b", "octo", name="Qwen3 14B", context_length=32768)
    seed.seen("qwen3-14b", "stopped", desired="stopped")
    gone = "GPU-00000000-9999"
    Placement.objects.filter(model_id="qwen3-14b").update(gpu_uuids=[seed.gpu_uuid("octo", 2), gone])
    seed.model("qwen3-full", "octo", name="Qwen3 on a full card")
    seed.seen("qwen3-full", "stopped", desired="stopped")
    Placement.objects.filter(model_id="qwen3-full").update(gpu_uuids=[seed.gpu_uuid("octo", 0)])
    seed.model("smollm2-135m", "local", name="SmolLM2 135M", runtime="llama.cpp")
    for node in Node.objects.all():
        node.capabilities = {**node.capabilities, "allowTagPulls": True}
        node.default_image, node.status_at = "vllm/vllm-openai", clock.now()
        node.save(update_fields=["capabilities", "default_image", "status_at"])
    _shape()


def _eight(node_id: str, name: str) -> None:
    node = seed.node(node_id, name, gpus=8)
    report = dict(node.capabilities)
    for at, gpu in enumerate(report["gpus"]):
        kind, size = ("NVIDIA RTX 6000 Ada", 48) if at < 6 else ("NVIDIA A30", 24)
        gpu |= {"name": kind, "memoryBytes": size * GIB}
        seen = {"uuid": gpu["uuid"], "usedBytes": int(USED_GIB[at] * GIB), "totalBytes": size * GIB}
        Gpu.objects.filter(node=node, uuid=gpu["uuid"]).update(
            name=kind, memory_bytes=size * GIB, seen=seen, reserve_bytes=2 * GIB if at == 1 else None
        )
    node.capabilities = report
    node.save(update_fields=["capabilities"])


def _shape() -> None:
    facts = FolderShape(
        folder="qwen3-14b",
        config=CONFIG,
        safetensors=(
            SafetensorsFile(
                path="model-00001.safetensors",
                size_bytes=28 * GIB,
                tensor_bytes=28 * GIB - 4096,
                expert_bytes=0,
                bytes_by_type={"BF16": 28 * GIB - 4096},
            ),
        ),
    )
    source = ModelSource.objects.filter(folder="qwen3-14b").first()
    assert source is not None
    for copy in shapes._copies(source, snapshot.take().reports, ""):
        shapes._keep(copy.key, "qwen3-14b", facts)
    from models_app.models import KnownShape

    # A person does not finish an editor within the time that facts of a folder hold by themselves.
    KnownShape.objects.update(read_at=clock.now() + timedelta(hours=2))
