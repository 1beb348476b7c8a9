"""Bytes: resumed where they stopped, begun again when they changed, verified before they count."""

import hashlib

import pytest

from agent.downloads.hub import RetryPolicy
from agent.wire.downloads import DownloadState
from tests.agent.downloads.conftest import SIZE, Node, noise, repository, spec_of
from tests.bench.hub import Hub

pytestmark = pytest.mark.unit

HALF = SIZE // 2


async def test_a_set_arrives_whole_and_the_folder_appears_at_once(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.bytes_per_second = 6e6
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.until("d1", lambda view: 0 < view.done_bytes < view.total_bytes)
    assert node.listing() == []
    view = await node.end("d1")
    assert (view.state, view.reason) == (DownloadState.READY, None)
    assert view.done_bytes == view.total_bytes == sum(map(len, found.files.values()))
    assert (view.files_done, view.files_total) == (3, 3)
    assert node.listing() == ["acme--tiny"]
    for path, data in found.files.items():
        assert (node.root / "acme--tiny" / path).read_bytes() == data


async def test_progress_tells_bytes_and_speed_while_it_runs(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.bytes_per_second = 2e6
    await node.downloads.begin("d1", spec_of(hub, found))
    view = await node.until("d1", lambda view: view.bytes_per_second is not None)
    assert view.state is DownloadState.DOWNLOADING
    view = await node.until("d1", lambda view: (view.bytes_per_second or 0) > 3e5)
    assert (view.bytes_per_second or 0) < 2e7
    assert (await node.end("d1")).bytes_per_second is None


async def test_a_cut_at_half_goes_on_there_and_nothing_comes_twice(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.cut_after, hub.faults.cuts = HALF, 1
    await node.downloads.begin("d1", spec_of(hub, found))
    assert (await node.end("d1")).state is DownloadState.READY
    first, second = hub.of("store")
    assert first.range is None
    assert second.range is not None
    assert second.range.startswith("bytes=")
    assert 0 < int(second.range.removeprefix("bytes=").rstrip("-")) <= HALF
    assert second.if_range == f'"{hashlib.sha256(noise(SIZE)).hexdigest()[:32]}"'


async def test_a_hub_that_ignores_ranges_makes_it_begin_again(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.cut_after, hub.faults.cuts, hub.faults.ignore_ranges = HALF, 1, True
    await node.downloads.begin("d1", spec_of(hub, found))
    view = await node.end("d1")
    assert view.state is DownloadState.READY
    assert view.done_bytes == view.total_bytes, "bytes that were thrown away are not counted twice"


async def test_a_file_that_changed_in_the_store_begins_again(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.bytes_per_second = 3e6
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.until("d1", lambda view: view.done_bytes > 2 * 1024 * 1024 + 10)
    await node.downloads.close()
    hub.faults.bytes_per_second, hub.etag_salt = None, "other"
    await node.restart()
    assert (await node.end("d1")).state is DownloadState.READY
    assert hub.of("store")[-1].range is not None, "it asked to go on"


async def test_an_address_that_has_expired_is_replaced_by_a_new_one(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.expired = 2
    await node.downloads.begin("d1", spec_of(hub, found))
    assert (await node.end("d1")).state is DownloadState.READY
    assert len([seen for seen in hub.of("hub") if seen.path.endswith("model.safetensors")]) == 3


async def test_an_address_that_expires_in_the_middle_is_replaced_and_the_bytes_go_on(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.signed_seconds = 0.3
    hub.faults.cut_after, hub.faults.cuts, hub.faults.bytes_per_second = 256 * 1024, 4, 1e6
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.until("d1", lambda _: hub.faults.cuts == 0)
    hub.faults.bytes_per_second = None
    assert (await node.end("d1")).state is DownloadState.READY


async def test_a_wrong_byte_is_noticed_and_fetched_again(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.corrupt = 1
    await node.downloads.begin("d1", spec_of(hub, found))
    assert (await node.end("d1")).state is DownloadState.READY
    assert (node.root / "acme--tiny" / "model.safetensors").read_bytes() == found.files["model.safetensors"]


async def test_bytes_that_are_wrong_twice_are_never_ready(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.corrupt = 9
    await node.downloads.begin("d1", spec_of(hub, found))
    view = await node.end("d1")
    assert (view.state, view.reason_code) == (DownloadState.FAILED, "digest_mismatch")
    assert node.listing() == []


async def test_a_file_larger_than_stated_is_refused(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    spec = spec_of(hub, found)
    small = [file.model_copy(update={"size_bytes": file.size_bytes - 1}) for file in spec.files]
    await node.downloads.begin("d1", spec.model_copy(update={"files": tuple(small)}))
    view = await node.end("d1")
    assert (view.state, view.reason_code) == (DownloadState.FAILED, "size_mismatch")
    assert node.listing() == []


async def test_a_hub_in_trouble_is_tried_again_and_then_given_up_with_a_sentence(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.errors = 2
    await node.downloads.begin("d1", spec_of(hub, found))
    assert (await node.end("d1")).state is DownloadState.READY
    hub.faults.errors = 1000
    other = hub.add(repository("acme/other"))
    await node.downloads.begin("d2", spec_of(hub, other))
    view = await node.end("d2")
    assert (view.state, view.reason_code) == (DownloadState.FAILED, "hub_unreachable")
    assert "503" in (view.reason or "")


async def test_the_token_is_shown_to_the_hub_and_to_nobody_else(hub: Hub, node: Node) -> None:
    found = hub.add(repository(gated=True, allowed={"hf_secret"}))
    node.downloads.give_token("d1", "hf_secret")
    await node.downloads.begin("d1", spec_of(hub, found))
    assert (await node.end("d1")).state is DownloadState.READY
    assert {seen.token for seen in hub.of("hub")} == {"hf_secret"}
    assert {seen.token for seen in hub.of("store")} == {None}
    kept = [path for path in node.config.state_dir.rglob("*") if path.is_file()]
    kept += [path for path in node.root.rglob("*") if path.is_file()]
    assert kept
    assert not any(b"hf_secret" in path.read_bytes() for path in kept)


@pytest.mark.parametrize(
    ("token", "code", "words"),
    [(None, "gated", "Accept its terms"), ("hf_other", "gated", "no access"), ("hf_wrong", "token_refused", "token")],
)
async def test_a_gated_repository_is_refused_in_words(
    hub: Hub, node: Node, token: str | None, code: str, words: str
) -> None:
    found = hub.add(repository(gated=True, allowed={"hf_secret"}))
    hub.accounts.add("hf_other")
    if token:
        node.downloads.give_token("d1", token)
    await node.downloads.begin("d1", spec_of(hub, found))
    view = await node.end("d1")
    assert (view.state, view.reason_code) == (DownloadState.FAILED, code)
    assert words in (view.reason or "")
    node.downloads.give_token("d2", "hf_secret")
    await node.downloads.begin("d2", spec_of(hub, found))
    assert (await node.end("d2")).state is DownloadState.READY


async def test_two_paths_with_the_same_content_are_fetched_once(hub: Hub, node: Node) -> None:
    data = noise(300_000, 7)
    found = hub.add(repository(files={"a/one.safetensors": data, "b/two.safetensors": data}))
    await node.downloads.begin("d1", spec_of(hub, found))
    view = await node.end("d1")
    assert (view.state, view.files_done, view.done_bytes) == (DownloadState.READY, 2, 600_000)
    assert len(hub.of("store")) == 1
    assert (node.root / "acme--tiny" / "b/two.safetensors").read_bytes() == data


async def test_the_machines_own_hub_address_wins(hub: Hub, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    found = hub.add(repository())
    monkeypatch.setenv("HF_ENDPOINT", f"{hub.endpoint}/")
    await node.downloads.begin("d1", spec_of(hub, found, endpoint="http://127.0.0.1:1"))
    assert (await node.end("d1")).state is DownloadState.READY


async def test_the_machines_proxy_is_used_and_left_out_where_it_says(
    hub: Hub, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hub.add(repository())
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    await node.downloads.begin("d1", spec_of(hub, found))
    assert (await node.end("d1")).reason_code == "hub_unreachable"
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    await node.downloads.begin("d2", spec_of(hub, found))
    assert (await node.end("d2")).state is DownloadState.READY


async def test_a_file_of_125_mb_of_which_4_mb_came_is_never_taken_for_the_file(hub: Hub, node: Node) -> None:
    size, came = 125_000_000, 4_000_000
    found = hub.add(repository("acme/large", files={"model.safetensors": bytes(size)}))
    hub.faults.cut_after, hub.faults.cuts = came, 1
    node.options["retry_policy"] = RetryPolicy(connect_seconds=20.0, read_seconds=20.0, pauses=())
    await node.restart()
    await node.downloads.begin("d1", spec_of(hub, found))
    view = await node.end("d1", 60)
    assert (view.state, view.reason_code, view.files_done) == (DownloadState.FAILED, "hub_unreachable", 0)
    assert 0 < view.done_bytes <= came
    assert node.listing() == [], "what came in part is not shown to engines"
    await node.downloads.begin("d2", spec_of(hub, found))
    assert (await node.end("d2", 60)).state is DownloadState.READY
    assert (node.root / "acme--large" / "model.safetensors").stat().st_size == size
    resumed = int((hub.of("store")[-1].range or "").removeprefix("bytes=").rstrip("-"))
    assert resumed == view.done_bytes


async def test_a_hub_that_does_not_answer_is_given_up_in_time_and_said(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    node.options["retry_policy"] = RetryPolicy(connect_seconds=0.3, read_seconds=0.3, pauses=(0.05, 0.05))
    await node.restart()
    hub.faults.silent = True
    await node.downloads.begin("d1", spec_of(hub, found))
    view = await node.end("d1", 10)
    assert (view.state, view.reason_code) == (DownloadState.FAILED, "hub_unreachable")
    hub.faults.silent = False
    await node.downloads.begin("d1", spec_of(hub, found))
    assert (await node.end("d1")).state is DownloadState.READY
