"""Sets: one at a time in a folder, shared, cancelled, taken up again; nothing of another's is touched."""

import asyncio
import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from agent.downloads import folders
from agent.downloads.partial_file import PartialFile
from agent.downloads.space import MARGIN_BYTES
from agent.downloads.staging import Staging
from agent.errors import AgentError
from agent.model_folders import list_folders
from agent.models_root import MARKER
from agent.wire.downloads import DownloadState
from agent.wire.errors import AgentCode
from tests.agent.downloads.conftest import SIZE, Node, noise, repository, spec_of
from tests.bench.hub import Hub

pytestmark = pytest.mark.unit


async def test_everyone_who_asks_for_the_same_set_shares_one_work(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.bytes_per_second = 4e6
    await asyncio.gather(*(node.downloads.begin(f"d{number}", spec_of(hub, found)) for number in range(4)))
    views = [await node.end(f"d{number}") for number in range(4)]
    assert {view.state for view in views} == {DownloadState.READY}
    assert len(hub.of("store")) == 1


async def test_the_same_id_again_is_the_same_download(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.end("d1")
    assert (await node.downloads.begin("d1", spec_of(hub, found))).state is DownloadState.READY
    assert len(node.downloads.views()) == 1


async def test_another_set_into_the_same_folder_waits_its_turn(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    other = hub.add(repository("acme/other"))
    hub.faults.bytes_per_second = 3e6
    await node.downloads.begin("d1", spec_of(hub, found))
    with pytest.raises(AgentError) as refused:
        await node.downloads.begin("d2", spec_of(hub, other, folder="acme--tiny"))
    assert refused.value.code is AgentCode.START_CONFLICT


async def test_a_cancelled_download_leaves_its_bytes_for_the_next_and_no_folder(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.bytes_per_second = 3e6
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.until("d1", lambda view: view.done_bytes > SIZE // 4)
    assert (await node.downloads.cancel("d1")).state is DownloadState.CANCELLED
    assert node.listing() == []
    hub.faults.bytes_per_second = None
    await node.downloads.begin("d2", spec_of(hub, found))
    assert (await node.end("d2")).state is DownloadState.READY
    assert hub.of("store")[-1].range is not None


async def test_who_cancels_does_not_end_the_download_of_another(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.bytes_per_second = 4e6
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.downloads.begin("d2", spec_of(hub, found))
    await node.downloads.cancel("d1")
    assert node.downloads.view("d1").state is DownloadState.CANCELLED
    assert (await node.end("d2")).state is DownloadState.READY


async def test_a_forgotten_download_leaves_nothing(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.bytes_per_second = 2e6
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.until("d1", lambda view: view.done_bytes > 1000)
    await node.downloads.forget("d1")
    assert node.downloads.views() == ()
    assert [path.name for path in node.root.rglob("*") if path.is_file() and path.suffix != ".lock"] == [MARKER]


async def test_a_restart_of_the_agent_goes_on_where_it_was(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.bytes_per_second = 3e6
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.until("d1", lambda view: view.done_bytes > SIZE // 3)
    hub.faults.bytes_per_second = None
    await node.restart()
    assert (await node.end("d1")).state is DownloadState.READY
    assert hub.of("store")[-1].range is not None


async def test_a_gated_download_after_a_restart_says_to_give_the_token_again(hub: Hub, node: Node) -> None:
    found = hub.add(repository(gated=True, allowed={"hf_secret"}))
    hub.faults.bytes_per_second = 3e6
    node.downloads.give_token("d1", "hf_secret")
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.until("d1", lambda view: view.done_bytes > SIZE // 4)
    hub.faults.bytes_per_second = None
    await node.restart()
    view = await node.end("d1")
    assert (view.state, view.reason_code) == (DownloadState.FAILED, "gated")
    assert "with a token" in (view.reason or "")


@pytest.mark.parametrize("moment", ["middle", "verified", "placed"])
async def test_an_agent_that_is_killed_goes_on_at_its_next_start(hub: Hub, node: Node, moment: str) -> None:
    found = hub.add(repository())
    hub.faults.bytes_per_second = 4e6
    script = str(Path(__file__).with_name("dying_agent.py"))
    spec = spec_of(hub, found).model_dump_json(by_alias=True)
    places = (str(node.config.state_dir), str(node.root))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.agent.downloads.dying_agent", *places, moment, spec, cwd=Path(script).parents[3]
    )
    assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    hub.faults.bytes_per_second = None
    before = sum(seen.path.startswith("/blob") for seen in hub.seen)
    await node.restart()
    assert (await node.end("d1")).state is DownloadState.READY
    assert (node.root / "acme--tiny" / "model.safetensors").read_bytes() == found.files["model.safetensors"]
    again = hub.of("store")[before:]
    if moment == "middle":
        assert [seen.range is not None for seen in again] == [True]
    else:
        assert again == [], "what was verified is not fetched again"


async def test_a_lock_whose_holder_died_holds_nobody_up_and_a_living_one_does(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    staging = Staging(node.root, "acme--tiny")
    staging.prepare()
    lock = node.root / ".downloads" / "acme--tiny.lock"
    lock.write_text("999999\n")
    await node.downloads.begin("d1", spec_of(hub, found))
    assert (await node.end("d1")).state is DownloadState.READY
    with staging.locked():
        await node.downloads.begin("d2", spec_of(hub, found))
        view = await node.until("d2", lambda view: "process" in view.text)
        assert str(os.getpid()) in view.text
    assert (await node.end("d2")).state is DownloadState.READY


async def test_a_disk_that_fills_in_the_middle_is_told_and_the_rest_comes_later(
    hub: Hub, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hub.add(repository())
    append, room = PartialFile.append, [SIZE // 2]

    def full(self: PartialFile, data: bytes) -> None:
        taken = data[: room[0]]
        append(self, taken)
        room[0] -= len(taken)
        if len(taken) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PartialFile, "append", full)
    await node.downloads.begin("d1", spec_of(hub, found))
    view = await node.end("d1")
    assert (view.state, view.reason_code) == (DownloadState.FAILED, "disk_full")
    assert "Free space" in (view.reason or "")
    assert node.listing() == []
    room[0] = 10 * SIZE
    await node.downloads.begin("d2", spec_of(hub, found))
    assert (await node.end("d2")).state is DownloadState.READY
    assert hub.of("store")[-1].range is not None


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a small disk")
async def test_a_small_disk_is_really_filled(hub: Hub, node: Node) -> None:
    """The same on a disk of four megabytes, which has room for less than the set."""
    found = hub.add(repository(files={"model.safetensors": noise(8 * 1024 * 1024)}))
    mounted = await asyncio.create_subprocess_exec(
        "mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(node.root), stderr=asyncio.subprocess.DEVNULL
    )
    if await mounted.wait() != 0:
        pytest.skip("this machine mounts nothing")
    try:
        small = Node(node.config, free=lambda _: 1 << 40)
        await small.downloads.recover()
        await small.downloads.begin("d1", spec_of(hub, found))
        view = await small.end("d1")
        assert (view.state, view.reason_code) == (DownloadState.FAILED, "disk_full")
        assert 3 * 1024 * 1024 < view.done_bytes <= 4 * 1024 * 1024
        await small.downloads.close()
    finally:
        await (await asyncio.create_subprocess_exec("umount", "-l", str(node.root))).wait()


async def test_room_is_asked_for_before_anything_is_fetched(hub: Hub, config) -> None:  # type: ignore[no-untyped-def]
    found = hub.add(repository())
    node = Node(config, free=lambda _: SIZE)
    await node.downloads.recover()
    await node.downloads.begin("d1", spec_of(hub, found))
    view = await node.end("d1")
    assert (view.state, view.reason_code) == (DownloadState.FAILED, "disk_full")
    assert "has 3.0 MiB free" in (view.reason or "")
    assert hub.seen == []


async def test_space_that_a_download_in_progress_needs_is_not_given_to_another_one(hub: Hub, config) -> None:  # type: ignore[no-untyped-def]
    def free(root: Path) -> int:
        """A disk with the margin and two sets less a byte."""
        used = sum(path.stat().st_size for path in root.rglob("*.part")) + sum(
            path.stat().st_size for path in root.rglob("*.safetensors")
        )
        return 2 * SIZE + MARGIN_BYTES - 1 - used

    first, second = (
        hub.add(repository(f"acme/{name}", files={"model.safetensors": noise(SIZE, seed)}))
        for seed, name in enumerate(("first", "second"))
    )
    hub.faults.bytes_per_second = 1e6
    node = Node(config, free=free)
    await node.downloads.recover()
    await node.downloads.begin("d1", spec_of(hub, first))
    await node.until("d1", lambda view: view.done_bytes > SIZE // 4)
    await node.downloads.begin("d2", spec_of(hub, second))
    view = await node.end("d2")
    assert (view.state, view.reason_code) == (DownloadState.FAILED, "disk_full")
    assert "of them for downloads in progress. Free 0.0 MiB first." in (view.reason or "")
    assert node.downloads.view("d1").state is DownloadState.DOWNLOADING
    await node.downloads.forget("d1")
    hub.faults.bytes_per_second = None
    await node.downloads.begin("d3", spec_of(hub, second))
    assert (await node.end("d3")).state is DownloadState.READY
    await node.downloads.close()


async def test_a_models_root_that_cannot_be_written_is_said(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    (node.root / ".downloads").write_text("in the way")
    await node.downloads.begin("d1", spec_of(hub, found))
    view = await node.end("d1")
    assert (view.state, view.reason_code) == (DownloadState.FAILED, "models_root_unwritable")
    assert f"uid {os.getuid()}" in (view.reason or "")


async def test_a_set_that_is_here_already_is_looked_at_again(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.end("d1")
    asked = len(hub.of("store"))
    await node.downloads.begin("d2", spec_of(hub, found))
    assert (await node.end("d2")).state is DownloadState.READY
    assert len(hub.of("store")) == asked
    (node.root / "acme--tiny" / "model.safetensors").write_bytes(noise(SIZE, 99))
    assert list_folders(node.root)[0].missing == ("model.safetensors",)
    await node.downloads.begin("d3", spec_of(hub, found))
    assert (await node.end("d3")).state is DownloadState.READY
    assert (node.root / "acme--tiny" / "model.safetensors").read_bytes() == found.files["model.safetensors"]
    assert list_folders(node.root)[0].missing == ()


async def test_another_file_of_the_same_repository_completes_the_folder(hub: Hub, node: Node) -> None:
    found = hub.add(repository(files={"a.gguf": noise(100_000, 2), "b.gguf": noise(100_000, 3)}))
    spec = spec_of(hub, found)
    await node.downloads.begin("d1", spec.model_copy(update={"files": spec.files[:1]}))
    await node.end("d1")
    await node.downloads.begin("d2", spec.model_copy(update={"files": spec.files[1:]}))
    assert (await node.end("d2")).state is DownloadState.READY
    folder = list_folders(node.root)[0]
    assert [file.path for file in folder.files] == ["a.gguf", "b.gguf"]
    assert (folder.repository, folder.commit, folder.missing) == ("acme/tiny", found.sha, ())


async def test_a_folder_of_another_repository_is_not_touched(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.end("d1")
    other = hub.add(repository("acme/other", files={"model.safetensors": noise(SIZE, 5)}))
    await node.downloads.begin("d2", spec_of(hub, other, folder="acme--tiny"))
    assert (await node.end("d2")).reason_code == "folder_taken"
    (node.root / "mine").mkdir()
    (node.root / "mine" / "model.safetensors").write_bytes(b"mine")
    await node.downloads.begin("d3", spec_of(hub, other, folder="mine"))
    assert (await node.end("d3")).reason_code == "folder_taken"
    assert (node.root / "mine" / "model.safetensors").read_bytes() == b"mine"


async def test_a_given_up_choice_of_files_does_not_come_with_the_next(hub: Hub, node: Node) -> None:
    found = hub.add(repository(files={"a.gguf": noise(100_000, 2), "b.gguf": noise(SIZE, 3)}))
    spec = spec_of(hub, found)
    hub.faults.bytes_per_second = 2e6
    await node.downloads.begin("d1", spec)
    await node.until("d1", lambda view: view.files_done == 1)
    await node.downloads.cancel("d1")
    hub.faults.bytes_per_second = None
    await node.downloads.begin("d2", spec.model_copy(update={"files": spec.files[1:]}))
    await node.end("d2")
    assert [file.path for file in list_folders(node.root)[0].files] == ["b.gguf"]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../b", ".hidden", "a//b", "a\\b", "a/.git/x", "a\nb"])
async def test_a_path_that_leads_elsewhere_is_refused(hub: Hub, node: Node, path: str) -> None:
    found = hub.add(repository())
    spec = spec_of(hub, found)
    bad = spec.files[0].model_copy(update={"path": path})
    with pytest.raises(AgentError) as refused:
        await node.downloads.begin("d1", spec.model_copy(update={"files": (bad,)}))
    assert refused.value.code is AgentCode.SPEC_REJECTED


@pytest.mark.parametrize("folder", ["..", ".hidden", "a/b", "", "a\0b", "x" * 129])
async def test_a_folder_that_leads_elsewhere_is_refused(hub: Hub, node: Node, folder: str) -> None:
    found = hub.add(repository())
    with pytest.raises(AgentError) as refused:
        await node.downloads.begin("d1", spec_of(hub, found).model_copy(update={"folder": folder}))
    assert refused.value.code is AgentCode.SPEC_REJECTED


@pytest.mark.parametrize("name", ["pytorch_model.bin", "w.PT", "a.pth", "b.ckpt", "c.pkl", "d.pt2"])
async def test_pickles_are_refused_before_anything_is_fetched(hub: Hub, node: Node, name: str) -> None:
    found = hub.add(repository(files={name: noise(100_000)}))
    with pytest.raises(AgentError) as refused:
        await node.downloads.begin("d1", spec_of(hub, found))
    assert refused.value.code is AgentCode.SPEC_REJECTED
    assert name in refused.value.detail
    assert hub.seen == []
    await node.downloads.begin("d2", spec_of(hub, found, allow_pickle=True))
    assert (await node.end("d2")).state is DownloadState.READY


async def test_a_folder_goes_whole_and_says_what_is_free_now(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.end("d1")
    freed = folders.remove(node.root, "acme--tiny")
    assert freed >= sum(map(len, found.files.values()))
    assert node.listing() == []
    assert not list((node.root / ".downloads").glob("trash-*"))


def test_a_link_goes_as_a_link_and_frees_nothing(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "w").write_bytes(b"12345")
    root = tmp_path / "models"
    root.mkdir()
    (root / "linked").symlink_to(elsewhere)
    assert folders.remove(root, "linked") == 0
    assert (elsewhere / "w").exists()


@pytest.mark.parametrize("name", ["..", ".downloads", "", "a/b"])
def test_only_model_folders_can_be_removed(tmp_path: Path, name: str) -> None:
    with pytest.raises(AgentError):
        folders.remove(tmp_path, name)
    assert tmp_path.exists()
