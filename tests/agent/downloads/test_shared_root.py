"""Two agents on one models root, with and without locks: each verifies what is placed, no file has two writers."""

import asyncio
import errno
import fcntl
import logging
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent import cli, state
from agent.config import AgentConfig
from agent.downloads import manifest
from agent.downloads.manifest import VerifiedFile
from agent.downloads.partial_file import PartialFile
from agent.downloads.staging import Staging
from agent.model_folders import list_folders
from agent.wire.downloads import DownloadState
from tests.agent.downloads.conftest import SIZE, Node, noise, repository, spec_of
from tests.bench.hub import Hub

pytestmark = pytest.mark.unit

NONE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """Two agents with states of their own."""
    (tmp_path / "models").mkdir()
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append(Node(AgentConfig(state_dir=tmp_path / name, models_root=tmp_path / "models")))
        await made[-1].downloads.recover()
    yield made[0], made[1]
    for node in made:
        await node.downloads.close()


def no_locks(monkeypatch: pytest.MonkeyPatch, code: int | None) -> None:
    """Locks that do not exist here, or with None ones that everybody gets."""

    def flock(descriptor: int, kind: int) -> None:
        if code is not None:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)


def is_whole(node: Node, found: Any) -> bool:
    """The folder has the right bytes, and its manifest is of these files."""
    folder = node.root / "acme--tiny"
    known = manifest.read(folder)
    if known is None or len(known.files) != len(found.files):
        return False
    right = all((folder / path).read_bytes() == data for path, data in found.files.items())
    return right and all(file.inode and file.is_identical(folder) for file in known.files)


@pytest.mark.parametrize("code", [*NONE, None])
async def test_without_locks_both_fetch_all_of_it_and_the_folder_is_right(
    hub: Hub,
    two: tuple[Node, Node],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int | None,
) -> None:
    no_locks(monkeypatch, code)
    found = hub.add(repository())
    hub.faults.bytes_per_second = 6e6
    with caplog.at_level(logging.WARNING, "mirbad.agent.downloads"):
        await asyncio.gather(*(node.downloads.begin("d1", spec_of(hub, found)) for node in two))
        views = [await node.end("d1") for node in two]
    assert [(view.state, view.reason) for view in views] == [(DownloadState.READY, None)] * 2
    assert len(hub.of("store")) == 2
    assert is_whole(two[0], found)
    assert list_folders(two[0].root)[0].missing == ()
    words = f"has no file locks ({os.strerror(code)})" if code is not None else "Locks do not hold"
    assert words in caplog.text
    assert "Traceback" not in caplog.text
    assert not list((two[0].root / ".downloads").rglob("*.part"))


async def test_a_view_says_that_there_are_no_locks(
    hub: Hub, two: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_locks(monkeypatch, errno.ENOLCK)
    hub.faults.bytes_per_second = 3e6
    await two[0].downloads.begin("d1", spec_of(hub, hub.add(repository())))
    # Files that are whole already, and the large one: the warning is of the set, and stays as long.
    await two[0].until("d1", lambda view: view.files_done == 2)
    view = await two[0].until("d1", lambda view: view.done_bytes > SIZE // 2)
    assert view.state is DownloadState.DOWNLOADING
    assert "has no file locks (No locks available)" in view.text


async def test_with_locks_the_second_waits_names_the_first_and_fetches_nothing(
    hub: Hub, two: tuple[Node, Node]
) -> None:
    found = hub.add(repository())
    hub.faults.bytes_per_second = 4e6
    await two[0].downloads.begin("d1", spec_of(hub, found))
    await two[0].until("d1", lambda view: view.done_bytes > 0)
    await two[1].downloads.begin("d1", spec_of(hub, found))
    view = await two[1].until("d1", lambda view: "another agent" in view.text)
    assert f"process {os.getpid()} on {socket.gethostname()}" in view.text
    assert [(await node.end("d1")).state for node in two] == [DownloadState.READY] * 2
    assert len(hub.of("store")) == 1
    assert is_whole(two[1], found)


async def test_the_bytes_of_an_agent_that_is_gone_are_continued_by_another(hub: Hub, two: tuple[Node, Node]) -> None:
    found = hub.add(repository())
    hub.faults.bytes_per_second = 3e6
    await two[0].downloads.begin("d1", spec_of(hub, found))
    await two[0].until("d1", lambda view: view.done_bytes > SIZE // 3)
    await two[0].downloads.close()
    for path in (two[0].root / ".downloads").rglob("*"):
        os.utime(path, (0, 0))
    hub.faults.bytes_per_second = None
    await two[1].downloads.begin("d1", spec_of(hub, found))
    assert (await two[1].end("d1")).state is DownloadState.READY
    assert hub.of("store")[-1].range is not None
    assert list((two[1].root / ".downloads").iterdir()) == [two[1].root / ".downloads" / "acme--tiny.lock"]


async def test_bytes_from_before_writers_had_folders_are_continued(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    hub.faults.bytes_per_second = 3e6
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.until("d1", lambda view: view.done_bytes > SIZE // 3)
    await node.downloads.close()
    hidden = node.root / ".downloads" / "acme--tiny"
    own = next(hidden.iterdir())
    for kind in ("parts", "tree"):
        (own / kind).rename(hidden / kind)
    own.rmdir()
    hub.faults.bytes_per_second = None
    await node.restart()
    assert (await node.end("d1")).state is DownloadState.READY
    assert hub.of("store")[-1].range is not None


async def test_a_file_with_the_same_size_and_time_is_not_taken_for_the_verified_one(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.end("d1")
    assert is_whole(node, found)
    path = node.root / "acme--tiny" / "model.safetensors"
    times = path.stat()
    path.unlink()
    path.write_bytes(noise(SIZE, 42))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    await node.downloads.begin("d2", spec_of(hub, found))
    assert (await node.end("d2")).state is DownloadState.READY
    assert is_whole(node, found)


async def test_a_copy_of_a_folder_is_verified_by_its_bytes_and_not_fetched(hub: Hub, node: Node) -> None:
    found = hub.add(repository())
    await node.downloads.begin("d1", spec_of(hub, found))
    await node.end("d1")
    folder = node.root / "acme--tiny"
    for path in found.files:
        times = (folder / path).stat()
        (folder / path).rename(folder / "old")
        (folder / path).write_bytes((folder / "old").read_bytes())
        os.utime(folder / path, ns=(times.st_atime_ns, times.st_mtime_ns))
    (folder / "old").unlink()
    assert list_folders(node.root)[0].missing == ()
    asked = len(hub.of("store"))
    await node.downloads.begin("d2", spec_of(hub, found))
    assert (await node.end("d2")).state is DownloadState.READY
    assert len(hub.of("store")) == asked
    assert is_whole(node, found)


@pytest.mark.parametrize(("same", "state_"), [(True, DownloadState.READY), (False, DownloadState.FAILED)])
async def test_what_another_program_puts_in_place_is_read_before_it_counts(
    hub: Hub, node: Node, monkeypatch: pytest.MonkeyPatch, same: bool, state_: DownloadState
) -> None:
    """Another agent renames its file to the same place at the last moment."""
    found = hub.add(repository())
    (node.root / "acme--tiny").mkdir()
    moved = VerifiedFile.moved_to

    def late(self: VerifiedFile, folder: Path, path: str) -> VerifiedFile | None:
        if folder.name == "acme--tiny" and path == "model.safetensors":
            (folder / "theirs").write_bytes(found.files[path] if same else noise(SIZE, 9))
            (folder / "theirs").replace(folder / path)
        return moved(self, folder, path)

    monkeypatch.setattr(VerifiedFile, "moved_to", late)
    await node.downloads.begin("d1", spec_of(hub, found))
    view = await node.end("d1")
    assert (view.state, view.reason_code) == (state_, None if same else "placed_file_changed")
    assert is_whole(node, found) == same


async def test_a_folder_that_appears_at_the_last_moment_is_completed(
    hub: Hub, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = hub.add(repository())
    whole = Staging._place_whole

    def late(self: Staging, spec: Any) -> bool:
        real = Path.exists

        def exists(path: Path) -> bool:
            there = real(path)
            if path == self.folder and not there:
                path.mkdir()
                (path / "config.json").write_bytes(found.files["config.json"])
            return there

        with monkeypatch.context() as patch:
            patch.setattr(Path, "exists", exists)
            return whole(self, spec)

    monkeypatch.setattr(Staging, "_place_whole", late)
    await node.downloads.begin("d1", spec_of(hub, found))
    assert (await node.end("d1")).state is DownloadState.READY
    assert is_whole(node, found)


def test_two_writers_of_one_part_write_the_same_bytes_to_the_same_places(tmp_path: Path, hub: Hub) -> None:
    """As two machines with one cloned state do on a disk without locks."""
    data = noise(100_000)
    file = spec_of(hub, hub.add(repository(files={"w.safetensors": data}))).files[0]
    one, two = PartialFile(tmp_path, file), PartialFile(tmp_path, file)
    one.open()
    two.open()
    for begin in range(0, len(data), 10_000):
        for part in (one, two):
            part.append(data[begin : begin + 10_000])
    assert one.is_whole
    assert two.is_whole
    one.finish(tmp_path / "w")
    assert (tmp_path / "w").read_bytes() == data
    with pytest.raises(FileNotFoundError):
        two.finish(tmp_path / "w2")
    two.close()


@pytest.mark.parametrize("how", ["replaced", "longer", "shorter"])
def test_a_part_that_another_program_changed_is_not_finished(tmp_path: Path, hub: Hub, how: str) -> None:
    data = noise(100_000)
    part = PartialFile(tmp_path, spec_of(hub, hub.add(repository(files={"w.safetensors": data}))).files[0])
    part.open()
    part.append(data)
    if how == "replaced":
        (tmp_path / "other").write_bytes(data)
        (tmp_path / "other").replace(part.path)
    else:
        os.truncate(part.path, 100_001 if how == "longer" else 99_999)
    with pytest.raises(OSError, match="another program changed it"):
        part.finish(tmp_path / "w")
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("code", NONE)
def test_a_state_folder_without_locks_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    no_locks(monkeypatch, code)
    with pytest.raises(state.NoLocks) as refused, state.exclusive(tmp_path / "serve.lock"):
        pass
    assert refused.value.filename == str(tmp_path / "serve.lock")
    assert f"no file locks ({os.strerror(code)}). Use a local disk" in refused.value.strerror
    assert not state.is_locked(tmp_path / "serve.lock")


def test_a_command_says_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_locks(monkeypatch, errno.ENOLCK)
    monkeypatch.setenv(cli.TOKEN_VARIABLE, "a.b")
    words = ["join", "--state-dir", str(tmp_path), "--enroll-url", "https://127.0.0.1:1", "--ca-hash", "sha256:00"]
    assert cli.main([*words, "--node-id", "pc-1"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith(f"mirbad-agent: {tmp_path / 'join.lock'}: its file system has no file locks")
    assert printed.count("\n") == 1


async def test_another_failure_of_the_lock_is_said_in_words(
    hub: Hub, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_locks(monkeypatch, errno.EIO)
    await node.downloads.begin("d1", spec_of(hub, hub.add(repository())))
    view = await node.end("d1")
    assert (view.state, view.reason_code) == (DownloadState.FAILED, "models_root_unwritable")
    assert "cannot be locked" in (view.reason or "")
    assert "input/output error" in (view.reason or "")
