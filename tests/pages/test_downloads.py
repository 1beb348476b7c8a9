"""Pages of downloads, folders and the catalog: what they show, and what a person does there."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import reverse

from agent.wire.downloads import FolderList, FolderRemoved
from jobs import ledger
from jobs.kinds import download
from jobs.models import Operation
from models_app.models import ModelDefinition
from tests.bench.hub import Hub, Repository
from tests.models_app.things import PERSON, capabilities, node, placed
from tests.pages.markup import compact

pytestmark = [pytest.mark.app, pytest.mark.django_db]

HTMX = {"HX-Request": "true"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        yield made


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record the calls to an agent; it holds one folder."""
    seen: list[tuple[str, str]] = []
    listed = FolderList.model_validate(
        {"folders": [{"name": "acme--tiny", "totalBytes": 5 << 30, "repository": "acme/tiny", "commit": "c" * 40,
                      "missing": ["model.safetensors"]}], "freeBytes": 1 << 30, "totalBytes": 9 << 30}
    )  # fmt: skip

    def call(node_id: str, method: str, path: str, body: Any = None, *, answer: Any, **_: Any) -> Any:
        seen.append((method, path))
        if method == "DELETE":
            return FolderRemoved(folder="acme--tiny", freed_bytes=5 << 30, folders=FolderList(folders=()))
        return listed if path == "folders" else answer.model_validate({"downloadId": "op-1", "downloads": []})

    monkeypatch.setattr("nodes.link.client.call", call)
    return seen


def able(node_id: str = "pc-1", **columns: Any) -> Any:
    return node(node_id, caps=capabilities(features=("downloads", "folders")), **columns)


def begun(**columns: Any) -> Operation:
    spec = {
        "folder": "acme--tiny",
        "repository": "acme/tiny",
        "commit": "c" * 40,
        "files": [{"path": "model.safetensors", "sizeBytes": 4 << 30, "digest": "sha256:" + "a" * 64}],
    }
    subject = ledger.Subject("folder", "target", "pc-1")
    made = ledger.create(
        download.KIND, download.DOWNLOADING, subject, PERSON, "Requested.", download.DownloadInput(spec=spec)
    )
    Operation.objects.filter(pk=made.pk).update(**columns)
    return made


def test_a_download_shows_its_bytes_and_speed_and_offers_what_can_be_done(operator) -> None:
    able()
    progress = {"text": "Downloading.", "doneBytes": 1 << 30, "totalBytes": 4 << 30, "bytesPerSecond": 80 << 20}
    running = begun(progress=progress)
    text = operator.client.get(reverse("jobs:downloads"), headers=HTMX).content.decode()
    for words in (
        "acme/tiny",
        "80 MiB/s",
        "1 GiB of 4 GiB",
        f'value="{1 << 30}"',
        reverse("jobs:cancel", args=[running.pk]),
    ):
        assert words in text
    detail = operator.client.get(reverse("jobs:detail", args=[running.pk])).content.decode()
    assert "Download of acme/tiny" in detail
    Operation.objects.update(
        outcome="failed", finished_at=running.created_at, error={"code": "gated", "detail": "It is gated."}
    )
    text = operator.client.get(reverse("jobs:downloads"), headers=HTMX).content.decode()
    for words in ("It is gated.", "Retry", "Remove unfinished"):
        assert words in text


def test_files_are_chosen_from_what_the_hub_says(operator, hub) -> None:
    able()
    hub.add(Repository("acme/tiny", {"config.json": b"{}", "model.safetensors": b"x" * 100_000, "old.bin": b"x" * 9}))
    sent = {"node": "pc-1", "repository": "acme/tiny"}
    text = compact(operator.client.post(reverse("jobs:download-files"), sent, headers=HTMX).content)
    assert 'value="model.safetensors" checked' in text
    assert 'value="old.bin">' in text
    assert "pickle" in text
    hub.add(Repository("acme/gated", {"config.json": b"{}"}, gated=True, allowed={"hf_good"}))
    sent["repository"] = "acme/gated"
    assert (
        "accept its terms" in operator.client.post(reverse("jobs:download-files"), sent, headers=HTMX).content.decode()
    )
    sent["token"] = "hf_good"
    text = operator.client.post(reverse("jobs:download-files"), sent, headers=HTMX).content.decode()
    assert "config.json" in text
    assert "hf_good" not in text


def test_a_download_is_asked_for_on_the_page_and_the_token_is_not_shown_again(operator, hub, calls) -> None:
    able()
    hub.add(Repository("acme/gated", {"config.json": b"{}"}, gated=True, allowed={"hf_good"}))
    sent = {"node": "pc-1", "repository": "acme/gated", "token": "hf_bad"}
    refused = operator.client.post(reverse("jobs:download-new"), sent, headers=HTMX).content.decode()
    assert "rejected the token" in refused
    assert "hf_bad" not in refused
    sent["token"] = "hf_good"
    answer = operator.client.post(reverse("jobs:download-new"), sent, headers=HTMX)
    assert answer["HX-Redirect"] == reverse("jobs:downloads")
    operation = Operation.objects.get()
    assert ("PUT", f"downloads/{operation.pk}/token") in calls
    assert "hf_good" not in str(Operation.objects.values_list())
    bad = operator.client.post(reverse("jobs:download-new"), {"node": "pc-1", "repository": "no"}, headers=HTMX)
    assert "owner/name" in bad.content.decode()


def test_folders_are_listed_and_one_is_removed_with_what_that_freed(operator, calls) -> None:
    able()
    placed(sources=[{"folder": "acme--tiny"}])
    text = operator.client.get(reverse("models:folders")).content.decode()
    for words in ("acme--tiny", "5 GiB", "acme/tiny", "changed or missing", ">tiny<"):
        assert words in text
    answer = operator.client.post(reverse("models:folder-delete", args=["pc-1", "acme--tiny"]), headers=HTMX)
    assert "5 GiB freed" in answer["HX-Trigger"]
    assert ("DELETE", "folders/acme--tiny") in calls


def test_folders_of_a_node_that_is_away_are_those_it_reported_last(viewer) -> None:
    folders = [{"name": "kept", "totalBytes": 1, "files": []}]
    caps = capabilities(features=("downloads",)).model_copy(update={"folders": ()}).to_wire() | {"folders": folders}
    node("pc-1", reachability="offline")
    ModelDefinition.objects.all()
    from nodes.models import Node

    Node.objects.update(capabilities=caps)
    text = viewer.client.get(reverse("models:folders")).content.decode()
    assert "of its last report" in text
    assert "kept" in text


def test_a_model_of_the_catalog_is_defined_with_its_repository(operator) -> None:
    able()
    answer = operator.client.post(
        reverse("models:catalog-model", args=["qwen2.5-0.5b-instruct-gguf"]), {"node": "pc-1"}, headers=HTMX
    )
    assert answer["HX-Redirect"] == reverse("models:list")
    source = ModelDefinition.objects.get().sources.get()
    assert (source.kind, source.repository) == ("huggingface", "Qwen/Qwen2.5-0.5B-Instruct-GGUF")
    again = operator.client.post(
        reverse("models:catalog-model", args=["qwen2.5-0.5b-instruct-gguf"]), {"node": "pc-1"}, headers=HTMX
    )
    assert again.status_code == 409
    assert operator.client.post(reverse("models:catalog-model", args=["none"]), headers=HTMX).status_code == 404


def test_saving_a_model_in_the_editor_keeps_its_repository_and_its_pickles(operator) -> None:
    able()
    source = {"kind": "huggingface", "folder": "acme--tiny", "repository": "acme/tiny", "revision": "v1"}
    placed(sources=[source], allowPickle=True)
    page = operator.client.get(reverse("models:edit", args=["tiny"]))
    form = page.context["form"]
    sent = {
        name: form[name].value()
        for name in form.fields
        if form[name].value() is not None and form[name].value() is not False
    }
    sent["display_name"] = "Renamed"
    answer = operator.client.post(reverse("models:edit", args=["tiny"]), sent, headers=HTMX)
    assert answer.status_code == 204, answer.context["form"].errors
    model = ModelDefinition.objects.get()
    kept = model.sources.get()
    assert (model.display_name, model.allow_pickle) == ("Renamed", True)
    assert (kept.kind, kept.repository, kept.revision, kept.folder) == ("huggingface", "acme/tiny", "v1", "acme--tiny")


def test_a_link_brings_what_a_new_model_begins_with(operator) -> None:
    able()
    page = operator.client.get(f"{reverse('models:new')}?node=pc-1&folder=acme--tiny&repository=acme/tiny")
    form = page.context["form"]
    assert (form["folder"].value(), form["repository"].value()) == ("acme--tiny", "acme/tiny")
