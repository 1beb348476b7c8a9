"""A models disk that is not there is not an empty one: nothing counts as deleted, nothing is fetched in its place."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import capability, cli, model_folders, models_root
from agent.config import AgentConfig
from agent.downloads import folders as removal
from agent.errors import AgentError
from agent.filesystem import FileSystem, of_folder
from agent.model_folders import Listing
from agent.models_root import MARKER
from agent.running import weights
from agent.wire.capability import Runtime
from agent.wire.downloads import DownloadState, FolderList
from agent.wire.errors import AgentCode
from agent.wire.instances import SourceSpec
from models_app.artifacts import folders
from tests.agent.core.conftest import *  # noqa: F403 - its fixtures: a fleet, a running agent, a master
from tests.agent.core.conftest import Agent, Master
from tests.agent.downloads import disks
from tests.agent.downloads.conftest import SIZE, Node, repository, spec_of
from tests.agent.downloads.disks import KINDS, Disk, model
from tests.agent.engines.conftest import spec
from tests.bench.hub import Hub
from tests.waiting import until_async

pytestmark = pytest.mark.unit


@pytest.fixture(params=KINDS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A disk with the model m, not there yet."""
    with KINDS[request.param](tmp_path / "place") as made:
        model(made.content)
        yield made


@pytest.fixture
def config(tmp_path: Path, request: pytest.FixtureRequest) -> AgentConfig:
    (tmp_path / "state").mkdir(exist_ok=True)
    root = tmp_path / "models"
    if "disk" in request.fixturenames:
        root = request.getfixturevalue("disk").root
    else:
        root.mkdir()
    made = AgentConfig(state_dir=tmp_path / "state", models_root=root, bind="127.0.0.1")
    return made.model_copy(update={"port": 0})


def listed(config: AgentConfig) -> Listing:
    return model_folders.of_node(config)


def is_fine(config: AgentConfig) -> bool:
    """The model is there, and nothing is said of the root."""
    found = listed(config)
    return found.problem is None and [(f.name, f.problem) for f in found.folders] == [("m", None)]


async def test_a_disk_that_goes_is_said_refuses_everything_and_comes_back_by_itself(
    disk: Disk, config: AgentConfig, hub: Hub
) -> None:
    disk.come()
    assert is_fine(config)
    disk.go()
    found = listed(config)
    assert found.problem is not None
    assert found.problem.code == "models_root_changed"
    assert str(config.models_root) in found.problem
    assert "accept-root" in found.problem
    assert [(folder.name, folder.problem) for folder in found.folders] == [("m", found.problem)]
    assert not folders.lacks(found.folders, "m", "a.gguf"), "it is unknown, and not deleted"
    assert capability._warnings(config, found)[0].code == "models_root_changed"  # type: ignore[attr-defined]
    node = Node(config)
    await node.downloads.recover()
    with pytest.raises(AgentError) as refused:
        await node.downloads.begin("d1", spec_of(hub, hub.add(repository())))
    assert refused.value.code is AgentCode.MODELS_ROOT_CHANGED
    assert hub.seen == []
    with pytest.raises(AgentError) as refused:
        await weights.find(spec(runtime=Runtime.LLAMA_CPP, source=SourceSpec(folder="m")), config)
    assert refused.value.code is AgentCode.MODELS_ROOT_CHANGED
    assert await weights.find(spec(), config) is None, "an engine without weights starts"
    disk.come()
    assert is_fine(config)
    await node.downloads.close()


def test_what_is_below_the_mount_is_never_taken_for_the_disk(disk: Disk, config: AgentConfig) -> None:
    listed(config)
    disk.come()
    assert is_fine(config), "a root that held nothing may become another"
    disk.go()
    assert listed(config).problem is not None
    assert listed(config).problem is not None, "it is the same at each look"


def test_the_owner_accepts_the_root_as_it_is(disk: Disk, config: AgentConfig, tmp_path: Path) -> None:
    disk.come()
    assert is_fine(config)
    disk.go()
    assert listed(config).problem is not None
    written = tmp_path / "agent.json"
    written.write_text(json.dumps({"state_dir": str(config.state_dir), "models_root": str(config.models_root)}))
    assert cli.main(["accept-root", "--config", str(written)]) == 0
    assert (listed(config).problem, listed(config).folders) == (None, ())
    disk.come()
    assert is_fine(config), "no model was there meanwhile"


def test_a_second_accept_says_that_there_is_nothing_to_accept(
    config: AgentConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "agent.json"
    written.write_text(json.dumps({"state_dir": str(config.state_dir), "models_root": str(config.models_root)}))
    assert cli.main(["accept-root", "--config", str(written)]) == 0
    assert "Nothing to accept" in capsys.readouterr().out


def test_the_agent_has_no_folder_that_it_saw_removed_and_minds_no_second_look(config: AgentConfig) -> None:
    model(config.models_root)
    model(config.models_root, "n")
    assert len(listed(config).folders) == 2
    removal.remove(config.models_root, "m")
    removal.remove(config.models_root, "n")
    assert listed(config) == Listing()
    assert listed(config) == Listing()


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"id": 5}', b'{"id": "other"}', b"[" * 4096])
def test_a_marker_that_is_gone_or_another_is_said(config: AgentConfig, content: bytes | None) -> None:
    model(config.models_root)
    assert is_fine(config)
    marker = config.models_root / MARKER
    before = marker.read_bytes()
    marker.unlink()
    if content is not None:
        marker.write_bytes(content)
    found = listed(config)
    assert found.problem is not None
    assert ("is missing" in found.problem) == (content is None)
    models_root.accept(config)
    assert is_fine(config)
    kept = json.loads(content)["id"] if content == b'{"id": "other"}' else None
    written = json.loads(marker.read_bytes())["id"]
    assert kept in (None, written), "a marker of another agent stays"
    assert marker.read_bytes() != before


def test_a_copy_of_all_on_another_disk_is_welcome_and_an_old_copy_is_not(tmp_path: Path) -> None:
    with disks.mounted(tmp_path / "place") as disk:
        model(disk.content)
        disk.come()
        config = AgentConfig(state_dir=tmp_path / "state", models_root=disk.root)
        config.state_dir.mkdir()
        assert is_fine(config)
        disk.go()
        disks.copied(disk, disk.root)
        assert is_fine(config)
        disk.come()
        assert is_fine(config), "and the way back"
        model(disk.content, "new")
        assert len(listed(config).folders) == 2
        disk.go()
        found = listed(config)
        assert found.problem is not None
        assert "tmpfs" in found.problem
        assert [folder.name for folder in found.folders] == ["m", "new"]


def test_two_agents_share_a_root_and_two_roots_of_one_agent_are_apart(tmp_path: Path) -> None:
    one, two = (AgentConfig(state_dir=tmp_path / name, models_root=tmp_path / "models") for name in ("s1", "s2"))
    other = one.model_copy(update={"models_root": tmp_path / "others"})
    for made in (one, two, other):
        made.state_dir.mkdir(exist_ok=True)
        made.models_root.mkdir(exist_ok=True)
    model(one.models_root)
    assert is_fine(one)
    assert is_fine(two)
    assert is_fine(one)
    assert listed(other) == Listing()
    (other.models_root / MARKER).unlink()
    model(other.models_root)
    assert is_fine(other), "it held nothing before"
    assert is_fine(one)


@pytest.mark.parametrize("how", ["mount", "link"])
def test_one_folder_on_a_disk_of_its_own_costs_itself_alone(tmp_path: Path, how: str) -> None:
    config = AgentConfig(state_dir=tmp_path / "state", models_root=tmp_path / "models")
    config.state_dir.mkdir()
    config.models_root.mkdir()
    model(config.models_root, "near")
    point = config.models_root / "far" if how == "mount" else tmp_path / "point"
    if how == "link":
        (config.models_root / "far").symlink_to(point / "far")
    with disks.tmpfs(point):
        model(point, "far")
        if how == "mount":
            (point / "far" / "a.gguf").rename(point / "a.gguf")
        assert [(f.name, f.problem) for f in listed(config).folders] == [("far", None), ("near", None)]
    found = listed(config)
    assert (found.problem, [reason.code for reason in found.changed]) == (None, ["model_folder_changed"])
    assert [(f.name, f.problem is None) for f in found.folders] == [("far", False), ("near", True)]
    assert not folders.lacks(found.folders, "far", "a.gguf")
    assert models_root.problem(config, "near") is None
    with pytest.raises(AgentError) as refused:
        models_root.require(config, "far/below")
    assert refused.value.code is AgentCode.SOURCE_MISSING
    models_root.note(config, "far", removed=True)
    assert listed(config).changed == ()


async def in_the_middle(tmp_path: Path, disk: Disk, hub: Hub) -> Node:
    """Return a node of a models disk that is there, with a quarter of the download d1."""
    model(disk.content)
    config = AgentConfig(state_dir=tmp_path / "state", models_root=disk.root)
    config.state_dir.mkdir()
    disk.come()
    assert is_fine(config)
    node = Node(config)
    await node.downloads.recover()
    hub.faults.bytes_per_second = 2e6
    await node.downloads.begin("d1", spec_of(hub, hub.add(repository())))
    await node.until("d1", lambda view: view.done_bytes > SIZE // 4)
    return node


async def test_an_agent_that_starts_before_its_disk_waits_with_its_downloads(tmp_path: Path, hub: Hub) -> None:
    with disks.swapped(tmp_path / "place") as disk:
        node = await in_the_middle(tmp_path, disk, hub)
        await node.downloads.close()
        hub.faults.bytes_per_second = None
        disk.go()
        asked = len(hub.seen)
        node = Node(node.config)
        await node.downloads.recover()
        view = await node.until("d1", lambda view: "accept-root" in view.text)
        assert (view.state, len(hub.seen)) == (DownloadState.WAITING, asked)
        assert sorted(path.name for path in disk.root.iterdir()) == [], "nothing is written to what is in its place"
        disk.come()
        assert (await node.end("d1")).state is DownloadState.READY
        assert hub.of("store")[-1].range is not None, "it resumed"
        assert sorted(folder.name for folder in listed(node.config).folders) == ["acme--tiny", "m"]
        await node.downloads.close()


async def test_a_disk_that_goes_during_a_download_gets_no_folder_beside_it(tmp_path: Path, hub: Hub) -> None:
    with disks.swapped(tmp_path / "place") as disk:
        node = await in_the_middle(tmp_path, disk, hub)
        disk.go()
        hub.faults.bytes_per_second = None
        view = await node.end("d1")
        assert view.state is DownloadState.FAILED
        assert node.listing() == []
        disk.come()
        await node.downloads.begin("d1", spec_of(hub, hub.repositories["acme/tiny"]))
        assert (await node.end("d1")).state is DownloadState.READY
        await node.downloads.close()


async def test_every_route_of_the_agent_refuses_with_the_code(
    master: Master, agent: Agent, config: AgentConfig, hub: Hub
) -> None:
    model(config.models_root)
    assert (await master.get("/folders")).body["problemCode"] is None
    (config.models_root / MARKER).unlink()
    found = FolderList.model_validate((await master.get("/folders")).body)
    assert (found.problem_code, found.free_bytes, found.total_bytes) == ("models_root_changed", None, None)
    assert [folder.name for folder in found.folders] == ["m"]
    body = spec_of(hub, hub.add(repository())).to_wire()
    replies = [
        await master.change("PUT", "/downloads/op-1", body),
        await master.get("/folders/m/shape"),
        await master.get("/folders/m/gguf"),
        await master.change("DELETE", "/folders/m"),
    ]
    assert [(reply.status, reply.body["code"]) for reply in replies] == [(409, "models_root_changed")] * 4
    assert (config.models_root / "m" / "a.gguf").exists()
    models_root.accept(config)
    assert (await master.change("PUT", "/downloads/op-2", body)).status == 202
    await until_async(lambda: agent.server._downloads.view("op-2").finished_at, "the download to end")


EXT = FileSystem(type="ext4", source="/dev/sdb1", point="/srv", uuid="u1", fsid="f1", total_bytes=100, inode=2)
XFS = FileSystem(type="xfs", source="/dev/sdb1", point="/srv", uuid="u1", total_bytes=100, inode=128)
BTRFS = EXT.model_copy(update={"type": "btrfs"})
NFS = FileSystem(type="nfs4", source="nas:/models", total_bytes=100, inode=7)
TMPFS = FileSystem(type="tmpfs", source="tmpfs", total_bytes=100, inode=1)


@pytest.mark.parametrize(
    ("before", "changes", "is_other", "is_surely"),
    [
        (EXT, {}, False, True),
        (EXT, {"source": "/dev/sdc1", "point": "/mnt"}, False, True),
        (EXT, {"uuid": "u2", "fsid": "f2"}, True, False),
        (EXT, {"uuid": "", "fsid": "f2"}, True, False),
        (EXT, {"uuid": "", "fsid": ""}, False, True),
        (EXT, {"type": "ext3"}, False, True),
        (EXT, {"type": "xfs"}, True, False),
        (EXT, {"inode": 77}, False, False),
        (EXT, {"total_bytes": 200}, False, True),
        (XFS, {"source": "/dev/sdc1"}, False, True),
        (XFS, {"uuid": "u2"}, True, False),
        (XFS, {"uuid": "", "total_bytes": 200}, False, False),
        (BTRFS, {"fsid": "f2"}, True, False),
        (NFS, {}, False, True),
        (NFS, {"type": "nfs", "total_bytes": 200}, False, True),
        (NFS, {"source": "10.0.0.5:/models"}, False, True),
        (NFS, {"source": "10.0.0.5:/other", "inode": 9}, False, False),
        (NFS, {"type": "ext4", "source": "/dev/sda1"}, True, False),
        (TMPFS, {"total_bytes": 200}, False, False),
        (TMPFS, {"type": "overlay"}, True, False),
        (FileSystem(), {}, False, True),
    ],
)
def test_file_systems_are_told_apart(
    before: FileSystem, changes: dict[str, object], is_other: bool, is_surely: bool
) -> None:
    now = before.model_copy(update=changes)
    assert (now.is_other(before), before.is_other(now)) == (is_other, is_other)
    assert (now.is_surely(before), before.is_surely(now)) == (is_surely, is_surely)


def test_the_file_system_of_a_folder_has_its_mount_with_blanks_in_its_name(tmp_path: Path) -> None:
    point = tmp_path / "a b\\c\td"
    with disks.tmpfs(point):
        (point / "below").mkdir()
        found = of_folder(point / "below")
        assert (found.type, found.point, found.within) == ("tmpfs", str(point), "/")
    with pytest.raises(FileNotFoundError):
        of_folder(tmp_path / "none")
