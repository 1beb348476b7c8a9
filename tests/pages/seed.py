"""A fleet in rows: what an operator's master may look like on an ordinary night."""

import hashlib
from datetime import timedelta

from agent.wire.capability import (
    Capabilities,
    Delivery,
    Feature,
    FolderFile,
    GpuCapability,
    MemoryModel,
    ModelFolder,
    Runtime,
    RuntimeCapability,
)
from agent.wire.status import GpuStatus, HostStatus
from audit import log as audit_log
from jobs.models import Operation, OperationEvent
from mirbad.kernel import actor, clock
from models_app import keys
from models_app.models import ApiKey, EngineExit, ModelDefinition, ModelSource, Placement
from models_app.registry import config_hash
from nodes.models import Gpu, JoinToken, Node, NodeCondition, NodePin

GIB = 1024**3
ADMIN = actor.admin("a session of the tests")


def spki(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _capabilities(hostname: str, gpus: tuple[GpuCapability, ...], folders: tuple[ModelFolder, ...]) -> Capabilities:
    return Capabilities(
        os="Debian GNU/Linux 12",
        arch="x86_64",
        hostname=hostname,
        cpu_count=32 if gpus else 8,
        memory_bytes=(128 if gpus else 32) * GIB,
        memory_model=MemoryModel.DISCRETE,
        memory_model_reason="the GPUs report memory of their own" if gpus else "no GPU",
        gpus=gpus,
        runtimes=(
            RuntimeCapability(runtime=Runtime.VLLM, delivery=Delivery.CONTAINER, available=bool(gpus), version="0.11.2")
            if gpus
            else RuntimeCapability(
                runtime=Runtime.VLLM, delivery=Delivery.CONTAINER, available=False, problem="vLLM needs a GPU."
            ),
            RuntimeCapability(runtime=Runtime.LLAMA_CPP, delivery=Delivery.PROCESS, available=True, version="b7100"),
            RuntimeCapability(runtime=Runtime.SIM, delivery=Delivery.PROCESS, available=True, version="1"),
        ),
        features=(Feature.GPUS_UUIDS, Feature.DELIVERY_PROCESS, Feature.FOLDERS),
        folders=folders,
        models_root="/srv/models",
        allow_tag_pulls=False,
    )


QWEN = ModelFolder(
    name="qwen3-14b",
    files=(
        FolderFile(path="config.json", size_bytes=900),
        FolderFile(path="model-00001.safetensors", size_bytes=28 * GIB),
    ),
    total_bytes=28 * GIB + 900,
)
SMOL = ModelFolder(
    name="smollm2-135m",
    files=(FolderFile(path="smollm2-135m-instruct-q8_0.gguf", size_bytes=145_000_000),),
    total_bytes=145_000_000,
)


def gpu_uuid(node_id: str, index: int) -> str:
    return f"GPU-{spki(f'{node_id}{index}')[:8]}-{index:04d}"


def _cards(node_id: str, count: int) -> tuple[GpuCapability, ...]:
    return tuple(
        GpuCapability(
            uuid=gpu_uuid(node_id, index),
            index=index,
            name="NVIDIA RTX 6000 Ada",
            memory_bytes=48 * GIB,
            shares_host_memory=False,
            compute_capability="8.9",
            driver_version="580.95",
        )
        for index in range(count)
    )


def _gpu(row: Node, index: int, card: GpuCapability) -> None:
    """Store a GPU with its last measurement."""
    status = GpuStatus(
        uuid=card.uuid,
        used_bytes=int((0.21, 0.66, 0.89, 0.97)[index % 4] * 48 * GIB),
        total_bytes=48 * GIB,
        utilization_percent=(31.0, 74.0, 98.0, 0.0)[index % 4],
        temperature_celsius=61.0,
        power_watts=None if index == 2 else 182.0,
    )
    Gpu.objects.create(
        node=row, uuid=card.uuid, index=index, name=card.name, memory_bytes=card.memory_bytes,
        shares_host_memory=False, seen=status.to_wire(),
    )  # fmt: skip


def node(node_id: str, name: str, *, gpus: int = 0, seen_seconds: float = 2, **columns) -> Node:
    now = clock.now()
    cards = _cards(node_id, gpus)
    total = (128 if gpus else 32) * GIB
    host = HostStatus(
        memory_total_bytes=total,
        memory_available_bytes=int(total * 0.58),
        cpu_percent=23.0,
        load_1m=3.4,
        disk_free_bytes=900 * GIB,
        disk_total_bytes=2000 * GIB,
    )
    row = Node.objects.create(
        id=node_id,
        display_name=name,
        address=f"10.0.0.{20 + Node.objects.count()}",
        enrolled_at=now - timedelta(days=12),
        last_seen_at=now - timedelta(seconds=seen_seconds),
        agent_version="0.1.0",
        protocol=1,
        held_epoch=3,
        cert_not_after=now + timedelta(days=61),
        capabilities=_capabilities(node_id, cards, (QWEN, SMOL)).to_wire(),
        host=host.to_wire(),
        machine={"os": "Debian GNU/Linux 12", "arch": "x86_64", "hostname": node_id, "agentVersion": "0.1.0"},
        request_address="10.0.0.99",
        **{"lifecycle": "approved", "reachability": "online"} | columns,
    )
    for index, card in enumerate(cards):
        _gpu(row, index, card)
    NodePin.objects.create(
        node=row,
        slot="pending" if row.lifecycle == "pending" else "current",
        spki_sha256=spki(node_id),
        cert_not_after=row.cert_not_after,
    )
    return row


def model(model_id: str, node_id: str = "", *, name: str = "", runtime: str = "vllm", **columns) -> ModelDefinition:
    row = ModelDefinition.objects.create(
        id=model_id,
        display_name=name,
        runtime=runtime,
        delivery="container" if runtime == "vllm" else "process",
        **columns,
    )
    ModelSource.objects.create(model=row, folder=SMOL.name if runtime == "llama.cpp" else QWEN.name)
    if node_id:
        Placement.objects.create(model=row, node_id_text=node_id, observed="stopped", observed_at=clock.now())
    return row


def seen(model_id: str, observed: str, *, desired: str = "running", reason: str = "", **view) -> Placement:
    placement = Placement.objects.select_related("model").get(model_id=model_id)
    placement.desired, placement.observed, placement.observed_reason = desired, observed, reason
    placement.observed_view = view
    placement.observed_at = clock.now() - timedelta(seconds=3)
    placement.start_seconds = 42.5
    node_row = Node.objects.filter(pk=placement.node_id_text).first()
    if node_row is not None:
        placement.observed_config_hash = config_hash(placement.model, placement, node_row)
    placement.save()
    return placement


def operation(
    model_id: str, kind: str = "launch", *, stage: str = "waiting", outcome: str = "open", **columns
) -> Operation:
    now = clock.now()
    placement = Placement.objects.filter(model_id=model_id).first()
    row = Operation.objects.create(
        kind=kind,
        concurrency_group="run",
        target_kind="placement",
        target_id=str(placement.pk) if placement else model_id,
        node_id_text=placement.node_id_text if placement else "",
        model_id_text=model_id,
        actor=str(ADMIN),
        stage=stage,
        stage_since=now - timedelta(seconds=20),
        next_run_at=now + timedelta(seconds=1),
        outcome=outcome,
        finished_at=None if outcome == "open" else now - timedelta(minutes=7),
        **columns,
    )
    Operation.objects.filter(pk=row.pk).update(created_at=now - timedelta(minutes=8 if outcome != "open" else 1))
    for text in ("Start requested.", "The node can run it.", "Accepted by the node."):
        OperationEvent.objects.create(operation=row, time=now - timedelta(seconds=50), stage=stage, text=text)
    row.refresh_from_db()
    return row


def ends_again(model_id: str, key: ApiKey) -> None:
    """The engine of a model ended twice with requests of one key, and the master stopped it."""
    placement = Placement.objects.get(model_id=model_id)
    placement.halted = (
        "Its engine ended again after 5 automatic restarts within 15 minutes, so it is stopped. "
        "Read its log, then start it."
    )
    placement.observed_view |= {
        "earlierRuns": [
            {"run": 1, "exitSignal": "SIGSEGV", "exitCode": 139, "exitedAt": "2026-11-29T03:11:02.120Z"},
            {"run": 2, "exitCode": 1, "exitedAt": "2026-11-29T02:58:40.002Z"},
        ]
    }
    placement.exits = 6
    placement.save()
    for number, minutes in ((1, 9), (2, 5)):
        EngineExit.objects.create(
            placement_id_text=str(placement.pk),
            run=f"run-{number}",
            model_id_text=model_id,
            node_id_text=placement.node_id_text,
            at=clock.now() - timedelta(minutes=minutes),
            code="engine_exited",
            reason="The engine was ended by SIGSEGV (exit code 139).",
            exit_code=139,
            signal="SIGSEGV",
            was_ready=True,
            requests=[{"requestId": f"req-7f6ee5ddbbc27d1800000{number}af", "keyId": key.pk}],
        )


OUT_OF_MEMORY = "The engine ended with exit code 1 while it loaded: CUDA out of memory."
LAST_LINES = (
    "INFO 11-29 03:12:08 [gpu_model_runner.py:2602] Starting to load model /models/qwen3-14b",
    "ERROR 11-29 03:12:41 [core.py:708] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB.",
    "RuntimeError: Engine core initialization failed. See root cause above.",
)


def download(node_id: str, repository: str, **columns) -> Operation:
    """A download of one large file to a node."""
    spec = {
        "folder": repository.replace("/", "--"),
        "repository": repository,
        "commit": spki(repository)[:40],
        "files": [{"path": "model.safetensors", "sizeBytes": 28 * GIB, "digest": f"sha256:{spki(repository)}"}],
    }
    now = clock.now()
    values = {"stage": "downloading", "stage_since": now, "next_run_at": now, "actor": str(ADMIN)} | columns
    if values.get("outcome"):
        values["finished_at"] = now
    row = Operation.objects.create(
        kind="download", concurrency_group="work", target_kind="folder", target_id=spki(repository)[:40],
        node_id_text=node_id,
        input={"spec": spec}, **values,
    )  # fmt: skip
    Operation.objects.filter(pk=row.pk).update(created_at=now - timedelta(minutes=4))
    return row


def _nodes() -> None:
    node("atlas", "Atlas", gpus=4)
    node("local", "", gpus=0, is_bootstrap=True)
    node(
        "borealis", "Borealis", gpus=2, seen_seconds=260, reachability="offline",
        reachability_reason="No answer for 15 s: the connection timed out.",
    )  # fmt: skip
    degraded = node("cirrus", "Cirrus", gpus=1, draining=True)
    NodeCondition.objects.create(
        node=degraded, source="placement", code="placed_gpu_missing", subject="qwen3-embed",
        detail="Model 'qwen3-embed' is placed on a GPU that the node no longer reports. Choose its GPUs again.",
    )  # fmt: skip
    node("dune", "", lifecycle="pending", reachability="unknown")
    JoinToken.objects.create(
        id="00112233aabbccdd", digest=spki("token"), purpose="join", node_id_text="ember", display_name="Ember",
        expires_at=clock.now() + timedelta(minutes=48), created_by=str(ADMIN),
    )  # fmt: skip


def _models() -> None:
    model(
        "qwen3-14b",
        "atlas",
        name="Qwen3 14B",
        tags=["chat", "prod"],
        served_names=["qwen3-14b", "default"],
        auto_start=True,
    )
    model("smollm2-135m", "local", name="SmolLM2 135M", runtime="llama.cpp", tags=["starter"])
    model("qwen3-coder", "atlas", name="Qwen3 Coder", args=["--max-num-seqs", "64"], secret_env_names=["HF_TOKEN"])
    model("qwen3-embed", "cirrus", name="Qwen3 Embedding")
    model("gemma-3-27b", "borealis", name="Gemma 3 27B")
    model("phi-4", "atlas", name="Phi 4")
    model("draft-idea")
    seen("qwen3-14b", "ready", memoryBytes=31 * GIB, state="ready")
    Placement.objects.filter(model_id="qwen3-14b").update(
        observed_config_hash="0" * 64, gpu_uuids=[gpu_uuid("atlas", 1)]
    )
    seen("smollm2-135m", "ready", memoryBytes=220_000_000)
    seen("qwen3-coder", "starting", progress={"text": "Loading weights"})
    seen("qwen3-embed", "unhealthy", reason="The health check has failed for 40 s.")
    seen("gemma-3-27b", "unknown")
    seen("phi-4", "failed", desired="stopped", reason=OUT_OF_MEMORY,
         reasonCode="engine_exited", exitCode=1, lastLines=list(LAST_LINES))  # fmt: skip


def _operations() -> None:
    operation(
        "qwen3-coder",
        progress={"text": "Loading weights, shard 3 of 6", "doneBytes": 14 * GIB, "totalBytes": 28 * GIB},
    )
    failure = {"code": "engine_exited", "detail": OUT_OF_MEMORY, "lines": list(LAST_LINES)}
    operation("phi-4", outcome="failed", error=failure)
    operation("smollm2-135m", stage="done", outcome="succeeded")
    operation("qwen3-14b", kind="stop", stage="stopping", outcome="succeeded")
    speed = {"doneBytes": 9 * GIB, "totalBytes": 28 * GIB, "bytesPerSecond": 96 * 1024 * 1024}
    download("atlas", "Qwen/Qwen3-14B", progress={"text": "Downloading, 2 of 9 files are verified.", **speed})
    gated = {"code": "gated", "detail": "google/gemma-2-2b-it is gated: accept its terms on its page first."}
    download("local", "google/gemma-2-2b-it", outcome="failed", error=gated)
    download("atlas", "microsoft/Phi-3.5-mini-instruct", outcome="succeeded", stage="done")


def _keys() -> None:
    chat, _ = keys.create("open-webui", actor=ADMIN)
    ends_again("phi-4", chat)
    keys.create(
        "batch of nightly summaries",
        actor=ADMIN,
        allowed_models=["qwen3-14b"],
        expires_at=clock.now() + timedelta(days=30),
    )
    revoked, _ = keys.create("old laptop", actor=ADMIN)
    keys.revoke(revoked.pk, ADMIN)


def fleet() -> None:
    """Two GPU machines, one of them away, a machine without a GPU, one that waits; models in every state."""
    _nodes()
    _models()
    _operations()
    _keys()
    for action, node_id, model_id, result, detail in (
        ("node.approve", "atlas", "", "succeeded", ""),
        ("model.start", "atlas", "phi-4", "failed", "The engine ended with exit code 1."),
        ("node.drain", "cirrus", "", "succeeded", ""),
        ("model.start", "borealis", "gemma-3-27b", "refused", "Node borealis is offline."),
    ):
        audit_log.record(action, ADMIN, node_id=node_id, model_id=model_id, result=result, detail=detail)
