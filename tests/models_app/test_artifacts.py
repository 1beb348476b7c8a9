"""The selected files of a repository, the answers of a hub, and the catalog after a node's report."""

from collections.abc import Iterator
from typing import Any

import pytest

from agent.common.formats.pickles import is_pickle
from agent.wire.capability import FolderFile, ModelFolder, Runtime
from agent.wire.downloads import DownloadFile
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound
from models_app.artifacts import catalog, folders, hub, node_parameter, selection
from models_app.artifacts.download_request import DownloadRequest, spec_of
from models_app.artifacts.errors import (
    ChoiceRequired,
    Gated,
    HubUnreachable,
    NodeRequired,
    PickleRefused,
    RepositoryNotFound,
    TokenRefused,
)
from tests.bench.hub import Hub, Repository
from tests.models_app.things import capabilities, node

unit = pytest.mark.unit


def files(*names: str) -> tuple[DownloadFile, ...]:
    return tuple(DownloadFile(path=name, size_bytes=10, digest=f"sha256:{'a' * 64}") for name in names)


def chosen(*names: str, patterns: tuple[str, ...] = (), **options: Any) -> list[str]:
    return [file.path for file in selection.select("acme/x", files(*names), patterns, **options).files]


@unit
def test_two_shards_come_and_the_same_weights_in_other_forms_stay_away():
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    beside = ("config.json", "model.safetensors.index.json", "tokenizer.json", "README.md")
    away = ("consolidated.safetensors", "optimizer.pt", "pytorch_model.bin", "tf_model.h5", "model.gguf", "x.png",
            "original/consolidated.00.pth", "onnx/model.onnx", ".gitattributes")  # fmt: skip
    assert set(chosen(*shards, *beside, *away)) == {*shards, *beside}


@unit
def test_consolidated_weights_come_when_there_are_no_others():
    assert "consolidated.safetensors" in chosen("consolidated.safetensors", "params.json")


@unit
def test_pickles_without_safetensors_are_refused_unless_they_are_allowed():
    with pytest.raises(PickleRefused) as refused:
        chosen("config.json", "pytorch_model.bin")
    assert "pytorch_model.bin" in refused.value.detail
    assert chosen("config.json", "pytorch_model.bin", allow_pickle=True) == ["config.json", "pytorch_model.bin"]
    with pytest.raises(PickleRefused):
        chosen("model.safetensors", "extra.pt", patterns=("*",))


@unit
def test_several_gguf_models_want_a_choice_and_shards_follow_their_first():
    names = ("q4.gguf", "q8-00001-of-00002.gguf", "q8-00002-of-00002.gguf", "mmproj-f16.gguf", "README.md")
    with pytest.raises(ChoiceRequired) as refused:
        chosen(*names)
    assert refused.value.fields["files"] == ["q4.gguf", "q8-00001-of-00002.gguf"]
    assert chosen(*names, patterns=("q8-00001-of-00002.gguf",)) == list(names[1:3])
    assert chosen("only.gguf", "README.md") == ["only.gguf", "README.md"]


@unit
def test_a_pattern_that_matches_nothing_is_said():
    with pytest.raises(InvalidRequest, match="matches 'q9"):
        chosen("q4.gguf", patterns=("q9*",))


@unit
def test_a_folder_lacks_weights_when_it_is_gone_or_lost_a_file_or_has_another():
    there = ModelFolder(name="a", files=(FolderFile(path="q4.gguf", size_bytes=1),))
    assert not folders.lacks((there,), "a", "")
    assert not folders.lacks((there,), "a", "q4.gguf")
    assert folders.lacks((there,), "a", "q8.gguf")
    assert folders.lacks((there,), "b", "")
    assert folders.lacks((there.model_copy(update={"missing": ("q4.gguf",)}),), "a", "")


@pytest.fixture
def local_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        yield made


def test_a_repository_is_pinned_to_a_commit_with_sizes_and_digests(local_hub):
    found = local_hub.add(Repository("acme/tiny", {"config.json": b"{}", "model.safetensors": b"x" * 100_000}))
    seen = hub.resolve("acme/tiny", "main")
    assert (seen.commit, seen.gated, seen.license) == (found.sha, False, "apache-2.0")
    assert [(f.path, f.size_bytes, f.digest.partition(":")[0]) for f in seen.files] == [
        ("config.json", 2, "git-sha1"),
        ("model.safetensors", 100_000, "sha256"),
    ]
    spec = spec_of(DownloadRequest("acme/tiny"))
    assert (spec.folder, spec.commit, spec.endpoint) == ("acme--tiny", found.sha, local_hub.endpoint)


def test_what_a_hub_refuses_is_told_in_words(local_hub, monkeypatch):
    local_hub.add(Repository("acme/gated", {"config.json": b"{}"}, gated=True, allowed={"hf_good"}))
    local_hub.add(Repository("acme/secret", {"config.json": b"{}"}, private=True, allowed={"hf_good"}))
    local_hub.accounts.add("hf_other")
    # A token of this machine's own user is never used.
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    for name, token, refusal, words in (
        ("acme/gated", None, Gated, "accept its terms"),
        ("acme/gated", "hf_other", Gated, "no access"),
        ("acme/gated", "hf_bad", TokenRefused, "token"),
        ("acme/secret", None, RepositoryNotFound, "private"),
        ("acme/none", "hf_good", RepositoryNotFound, "no repository"),
    ):
        with pytest.raises(refusal) as refused:
            hub.resolve(name, "", token)
        assert words in refused.value.detail
        assert "hf_" not in refused.value.detail
    with pytest.raises(RepositoryNotFound, match="no revision"):
        hub.resolve("acme/gated", "nowhere", "hf_good")
    assert hub.resolve("acme/gated", "", "hf_good").gated
    with pytest.raises(InvalidRequest):
        hub.resolve("a/b/c")


def test_a_hub_that_times_out_or_is_away_is_unavailable_for_now(local_hub, monkeypatch):
    local_hub.faults.silent = True
    with pytest.raises(HubUnreachable, match="cannot reach"):
        hub.resolve("acme/tiny", timeout=0.3)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(HubUnreachable) as refused:
        hub.resolve("acme/tiny")
    assert refused.value.retryable


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "240"}, 240),
        ({"RateLimit": '"api";r=0;t=240'}, 240),
        ({"RateLimit-Reset": "12.5"}, 13),
        ({"Retry-After": "9" * 300}, 3600),
        ({}, 10),
    ],
)
def test_a_hub_that_limits_requests_says_when_it_may_be_asked_again(local_hub, headers, seconds):
    local_hub.add(Repository("acme/tiny", {"config.json": b"{}"}))
    local_hub.faults.refusals = {"api": [(429, headers)] * 9}
    with pytest.raises(HubUnreachable) as refused:
        hub.resolve("acme/tiny")
    assert refused.value.retry_after_seconds == seconds
    assert ("limits requests" in refused.value.detail) == bool(headers)
    assert (f"in {seconds} s" in refused.value.detail) == bool(headers)


@pytest.mark.app
@pytest.mark.django_db
def test_the_node_that_acts_is_the_only_one_or_the_one_that_is_named():
    with pytest.raises(NotFound):
        node_parameter.named("")
    node("pc-1")
    assert node_parameter.named("").pk == "pc-1"
    node("pc-2")
    node("pc-3", lifecycle="pending")
    node("pc-4", lifecycle="revoked")
    with pytest.raises(NodeRequired):
        node_parameter.named("")
    assert node_parameter.named("pc-2").pk == "pc-2"
    for gone in ("pc-4", "pc-9"):
        with pytest.raises(NotFound):
            node_parameter.named(gone)
    with pytest.raises(Conflict) as refused:
        node_parameter.named("pc-3")
    assert refused.value.code == "invalid_state"


@pytest.mark.app
@pytest.mark.django_db
def test_the_catalog_answers_from_the_last_report_of_a_node_that_is_away():
    entry = next(entry for entry in catalog.CATALOG if entry.file)
    held = ModelFolder(name=entry.folder, files=(FolderFile(path=entry.file, size_bytes=1),))
    away = node("pc-1", caps=capabilities(folders=(held,)), reachability="offline")
    offers = {offer.entry.id: offer for offer in catalog.offers(away)}
    assert offers[entry.id].present is True
    assert sum(bool(offer.present) for offer in offers.values()) == 1
    assert offers[entry.id].delivery == "process"


@unit
def test_the_catalog_is_whole():
    ids = [entry.id for entry in catalog.CATALOG]
    assert len(set(ids)) == len(ids) >= 10
    for entry in catalog.CATALOG:
        assert entry.size_bytes > 10**8
        assert entry.repository.count("/") == 1
        assert bool(entry.file) == (entry.runtime is Runtime.LLAMA_CPP)
        assert not any(is_pickle(pattern) for pattern in entry.files)
