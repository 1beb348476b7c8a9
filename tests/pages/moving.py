"""Moves in rows: one that downloads, one that waits for its source, one whose model was not started."""

from datetime import timedelta
from typing import Any

from jobs.models import Operation, OperationEvent
from mirbad.kernel import clock
from mirbad.kernel.ids import new_uid
from models_app import holds
from models_app.models import ModelSource, Placement
from tests.pages import seed


def movable(model_id: str, node_id: str, name: str = "") -> Placement:
    """A model whose weights any node can fetch, ready on `node_id`."""
    row = seed.model(model_id, node_id, name=name, runtime="llama.cpp")
    ModelSource.objects.filter(model=row).update(
        kind=ModelSource.HUGGING_FACE, repository="HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF"
    )
    return seed.seen(model_id, "ready", memoryBytes=2 * seed.GIB)


def move(placement: Placement, node_id: str, *, mode: str, stage: str, **columns: Any) -> Operation:
    """A move of it as it stands at `stage`."""
    now = clock.now()
    model_id = placement.model_id
    frozen = {
        "mode": mode,
        "source": str(placement.pk),
        "sourceNode": placement.node_id_text,
        "target": str(new_uid()),
        "gpuUuids": [],
        "generation": 2,
        "running": True,
        "specs": {},
        "onBehalfOf": "",
    }
    values = {"outcome": "open", "finished_at": None} | columns
    row = Operation.objects.create(
        kind="move", concurrency_group="placement", target_kind="model", target_id=model_id, model_id_text=model_id,
        node_id_text=node_id, actor=str(seed.ADMIN), stage=stage, stage_since=now, next_run_at=now, input=frozen,
        **values,
    )  # fmt: skip
    Operation.objects.filter(pk=row.pk).update(created_at=now - timedelta(minutes=3))
    for text in (f"Move to node {node_id} requested.", "Node local lacks the weights: downloading them.", stage):
        OperationEvent.objects.create(operation=row, time=now, stage=stage, text=text)
    if row.finished_at is None:
        holds.take(model_id, "move", f"move-{row.pk}", f"a move to node {node_id}")
    return row


def moves() -> None:
    """One of each."""
    speed = {"doneBytes": 412 * 2**20, "totalBytes": 1006 * 2**20, "bytesPerSecond": 38 * 2**20}
    spec = {
        "repository": "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
        "commit": "0" * 40,
        "folder": "smol",
        "files": [{"path": "smol.gguf", "sizeBytes": 9, "digest": f"sha256:{'0' * 64}"}],
    }
    move(
        movable("smollm2-1.7b", "atlas", "SmolLM2 1.7B"), "local", mode="handover", stage="downloading",
        progress={"text": "Downloading, 0 of 1 files are verified, 38 MiB/s.", **speed}, state={"spec": spec},
    )  # fmt: skip
    text = "Node borealis cannot be reached. The move continues once the node is back."
    move(
        movable("stranded", "borealis"), "local", mode="stop-first", stage="stopping-source",
        progress={"text": text, "paused": True},
    )  # fmt: skip
    reason = {
        "code": "admission_refused",
        "detail": "Node 'local': It needs 3.1 GiB and 1.2 GiB are free.",
        "lines": [],
    }
    move(
        movable("refused", "atlas"), "local", mode="stop-first", stage="done", outcome="succeeded",
        finished_at=clock.now(), result={"nodeId": "local", "start": reason},
    )  # fmt: skip
    movable("settled", "atlas", "Settled 1B")
