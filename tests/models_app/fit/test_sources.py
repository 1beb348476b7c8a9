"""Sources of shapes: a node that has the weights, an earlier reading, the hub; and the answer without any."""

import json
import struct
from typing import Any

import pytest

from agent.wire.capability import Feature, FolderFile, ModelFolder
from agent.wire.shape import FolderShape
from mirbad.kernel import clock
from models_app.artifacts import shapes
from models_app.artifacts.shapes import NodeReport
from models_app.models import KnownShape
from models_app.registry import SourceInput
from nodes.errors import NodeOffline
from tests.bench.hub import Hub, Repository
from tests.models_app.fit.public import MODELS
from tests.models_app.fit.test_noise import GGUF
from tests.models_app.things import capabilities

pytestmark = [pytest.mark.app, pytest.mark.django_db]
MODEL = MODELS[0]
FACTS = MODEL.folder()


def report(node_id: str = "pc-1", *, serving: bool = True, **folder: Any) -> NodeReport:
    held = {"name": "m", "files": (FolderFile(path="model.safetensors", size_bytes=5),)} | folder
    features = (Feature.FOLDER_SHAPES, Feature.FOLDERS)
    return NodeReport(node_id, capabilities(features=features, folders=(ModelFolder(**held),)), serving)


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Every node answers with the same facts; the questions are kept."""
    questions: list[str] = []

    def call(node_id: str, method: str, path: str, body: Any = None, **_: Any) -> FolderShape:
        questions.append(f"{node_id} {path}")
        return FACTS

    monkeypatch.setattr("nodes.link.client.call", call)
    return questions


SOURCE = SourceInput(folder="m")


def test_a_node_that_has_the_weights_is_asked_once(asked) -> None:
    for _ in range(3):
        shape = shapes.find(SOURCE, [report("pc-2"), report("pc-1")], first="pc-2")
        assert shape.weights_bytes == MODEL.total_size
    assert asked == ["pc-2 folders/m/shape?below=&file="]


def test_a_folder_that_changed_is_read_again(asked) -> None:
    shapes.find(SOURCE, [report()])
    shapes.find(SOURCE, [report(files=(FolderFile(path="model.safetensors", size_bytes=6),))])
    assert len(asked) == 2


def test_a_folder_of_a_download_is_known_by_its_revision_on_every_node(asked) -> None:
    fetched = {"repository": "acme/m", "commit": "a" * 40}
    shapes.find(SOURCE, [report("pc-1", **fetched)])
    shapes.find(SOURCE, [report("pc-2", **fetched)])
    shapes.find(SOURCE, [report("pc-2", **(fetched | {"commit": "b" * 40}))])
    assert [question.split()[0] for question in asked] == ["pc-1", "pc-2"]


def test_a_folder_that_nobody_downloaded_is_read_again_after_a_while_but_serves_while_its_node_is_away(
    asked, monkeypatch
) -> None:
    shapes.find(SOURCE, [report()])
    later = clock.now() + shapes._FOLDER_TRUST * 2
    monkeypatch.setattr(clock, "now", lambda: later)
    assert shapes.find(SOURCE, [report(serving=False)]).weights_bytes == MODEL.total_size
    assert len(asked) == 1
    shapes.find(SOURCE, [report()])
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("source", "folder"),
    [
        (SOURCE, {"name": "other"}),
        (SOURCE, {"missing": ("model.safetensors",)}),
        (SOURCE, {"files": ()}),
        (SourceInput(folder="m", file="a.gguf"), {}),
    ],
    ids=["another folder", "not whole", "empty", "without the file"],
)
def test_a_folder_that_is_not_the_weights_is_not_asked_for(asked, source, folder) -> None:
    shape = shapes.find(source, [report(**folder)])
    assert asked == []
    assert (shape.weights_bytes, shape.groups, shape.context) == (None, None, None)
    assert shape.why("weights").startswith("No reporting node has the folder m")
    assert shapes.holders(source, [report(**folder)]) == frozenset()


def test_a_node_that_does_not_answer_is_told_and_the_next_one_asked(monkeypatch) -> None:
    def call(node_id: str, *_: Any, **__: Any) -> FolderShape:
        if node_id == "pc-1":
            raise NodeOffline("Node pc-1 cannot be reached.")
        return FACTS

    monkeypatch.setattr("nodes.link.client.call", call)
    assert shapes.find(SOURCE, [report("pc-1"), report("pc-2")]).weights_bytes == MODEL.total_size
    KnownShape.objects.all().delete()
    assert shapes.find(SOURCE, [report("pc-1")]).why("cache") == "Node pc-1 cannot be reached."


def test_an_agent_of_another_version_is_not_asked(asked) -> None:
    old = NodeReport("pc-1", capabilities(folders=report().capabilities.folders), True)
    assert shapes.find(SOURCE, [old]).weights_bytes is None
    assert asked == []


def test_nobody_is_asked_when_that_is_not_wanted(asked) -> None:
    assert shapes.find(SOURCE, [report()], ask=False).weights_bytes is None
    assert asked == []


def safetensors(size: int) -> bytes:
    header = json.dumps({"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * size


@pytest.fixture
def hub(monkeypatch):
    with Hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


WANTED = SourceInput(kind="huggingface", folder="acme--m", repository="acme/m")


def test_a_repository_that_no_node_has_is_read_at_the_hub_once(hub) -> None:
    weights = safetensors(300_000)
    hub.add(Repository("acme/m", {
        "config.json": json.dumps(MODEL.config).encode(),
        "model-00001-of-00002.safetensors": weights, "model-00002-of-00002.safetensors": weights,
        "consolidated.safetensors": safetensors(600_000), "optimizer.pt": b"x" * 100_000,
    }))  # fmt: skip
    shape = shapes.find(WANTED, [])
    assert shape.weights_bytes == 600_000
    assert shape.context == MODEL.context
    assert all(seen.token is None for seen in hub.seen)
    before = len(hub.seen)
    assert shapes.find(WANTED, []).weights_bytes == 600_000
    assert len(hub.seen) == before, "what is known of a revision is not asked again"


def test_a_gguf_at_the_hub_is_read_from_its_begin(hub) -> None:
    hub.add(Repository("acme/m", {"a.gguf": GGUF + b"\0" * 200_000, "b.gguf": GGUF}))
    source = SourceInput(kind="huggingface", folder="acme--m", repository="acme/m", file="a.gguf")
    shape = shapes.find(source, [])
    assert (shape.layers, shape.weights_bytes) == (2, len(GGUF) + 200_000)


@pytest.mark.parametrize(
    ("repository", "words"),
    [
        (None, "Hugging Face has no repository acme/m, or it is private (enter a token that can read it)."),
        (
            Repository("acme/m", {"config.json": b"{}"}, gated=True),
            "acme/m is gated: accept its terms",
        ),
    ],
    ids=["unknown", "gated"],
)
def test_what_the_hub_refuses_is_the_reason(hub, repository, words) -> None:
    if repository is not None:
        hub.add(repository)
    shape = shapes.find(WANTED, [])
    assert shape.why("weights").startswith(words)
    assert shape.weights_bytes is None


def test_a_hub_that_is_silent_leaves_the_shape_unknown_in_time(hub, monkeypatch) -> None:
    monkeypatch.setattr(shapes, "_HUB_SECONDS", 0.5)
    hub.add(Repository("acme/m", {"config.json": b"{}"}))
    hub.faults.silent = True
    shape = shapes.find(WANTED, [])
    assert "The master cannot reach Hugging Face" in shape.why("weights")


def test_facts_that_another_version_wrote_are_read_again(asked) -> None:
    shapes.find(SOURCE, [report()])
    KnownShape.objects.update(facts={"folder": 5})
    assert shapes.find(SOURCE, [report()]).weights_bytes == MODEL.total_size
    assert len(asked) == 2


def test_facts_that_nobody_needed_for_half_a_year_are_dropped(asked, monkeypatch) -> None:
    shapes.find(SOURCE, [report()])
    later = clock.now() + shapes._FORGOTTEN_AFTER * 2
    monkeypatch.setattr(clock, "now", lambda: later)
    shapes.find(SOURCE, [report(files=(FolderFile(path="other.safetensors", size_bytes=6),))])
    assert [row.read_at for row in KnownShape.objects.all()] == [later]
