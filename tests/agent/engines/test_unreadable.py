"""A path that cannot be looked at costs itself alone, and is named with what to do: rights, links, network disks."""

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import capability, model_folders, patience, unreadable
from agent.config import AgentConfig
from agent.downloads import DownloadManager
from agent.errors import AgentError
from agent.running import weights
from agent.telemetry import host
from agent.wire.capability import ModelFolder, Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import SourceSpec
from models_app.artifacts import folders
from tests.agent.engines.conftest import spec

pytestmark = pytest.mark.unit
NOBODY = 65534


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A models root with one good folder, which everybody may read."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    (made / "models" / "good").mkdir(parents=True)
    (made / "models" / "good" / "a.gguf").write_bytes(b"12345")
    yield made / "models"
    shutil.rmtree(made)


@pytest.fixture
def nobody() -> Iterator[None]:
    """Run as a user to whom files may be closed."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def closed(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "x.gguf").write_bytes(b"x")
    folder.chmod(0o000)
    return folder


def listed(root: Path) -> dict[str, ModelFolder]:
    return {folder.name: folder for folder in model_folders.list_folders(root)}


def test_a_folder_or_link_that_is_closed_costs_itself_alone(root: Path, request: pytest.FixtureRequest) -> None:
    closed(root / "own")
    closed(root.parent / "home")
    (root.parent / "home").chmod(0o700)
    (root / "linked").symlink_to(root.parent / "home" / "models")
    (root / "part" / "open").mkdir(parents=True)
    (root / "part" / "open" / "b.gguf").write_bytes(b"123")
    closed(root / "part" / "shut")
    (root / "lost+found").mkdir(mode=0o700)
    request.getfixturevalue("nobody")
    found = listed(root)
    assert sorted(found) == ["good", "linked", "own", "part"]
    assert (found["good"].problem, found["good"].total_bytes) == (None, 5)
    for name in ("own", "linked", "part"):
        assert "is closed to the agent's user (uid " in (found[name].problem or "")
    assert [file.path for file in found["part"].files] == ["open/b.gguf"], "what can be read is listed"
    assert found["own"].files == ()


def test_links_that_form_a_loop_cost_themselves_alone(root: Path) -> None:
    (root / "self").symlink_to("self")
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    (root / "good" / "round.gguf").symlink_to("round.gguf")
    (root / "good" / "up").symlink_to(root)
    (root / "nowhere").symlink_to("gone")
    found = listed(root)
    assert sorted(found) == ["a", "b", "good", "self"]
    assert all("links form a loop" in (found[name].problem or "") for name in ("a", "b", "self", "good"))
    assert [file.path for file in found["good"].files] == ["a.gguf"]


ERRORS = {
    errno.ESTALE: "stale file handle",
    errno.EIO: "input/output error",
    errno.EACCES: "is closed to",
    errno.EPERM: "is closed to",
    errno.ETIMEDOUT: "does not answer",
    errno.EHOSTDOWN: "is down",
    errno.ENOTCONN: "not connected",
    errno.ENAMETOOLONG: "File name too long",
    errno.ENOMEM: "Cannot allocate memory",
}


@pytest.mark.parametrize("code", ERRORS)
@pytest.mark.parametrize("where", ["stat", "scandir"])
def test_any_error_of_the_file_system_costs_its_folder_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int, where: str
) -> None:
    (root / "bad").mkdir()
    real = getattr(os, where)

    def fails(path, *args, **kwargs):
        if str(path) == str(root / "bad"):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, where, fails)
    found = listed(root)
    assert found["good"].problem is None
    assert ERRORS[code] in (found["bad"].problem or "")
    assert not folders.lacks(tuple(found.values()), "bad", "x.gguf"), "nothing is downloaded in its place"
    assert folders.lacks(tuple(found.values()), "good", "x.gguf")


@pytest.fixture
def hanging(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A folder whose file system does not answer until the event is set."""
    (root / "far").mkdir()
    answers, real = threading.Event(), os.stat

    def stat(path, *args, **kwargs):
        if str(path) == str(root / "far"):
            answers.wait(30)
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(model_folders, "_FOLDER_SECONDS", 0.2)
    yield answers
    answers.set()


def test_a_file_system_that_hangs_costs_its_folder_alone_and_one_thread(root: Path, hanging: threading.Event) -> None:
    before = threading.active_count()
    for _ in range(3):
        found = listed(root)
        assert found["good"].problem is None
        assert "does not answer" in (found["far"].problem or "")
    assert threading.active_count() == before + 1
    hanging.set()
    for thread in patience._hanging.values():
        thread.join(5)
    assert listed(root)["far"].problem is None, "it is looked at again once it answers"


def test_very_many_hanging_folders_do_not_take_the_listing_with_them(root: Path, monkeypatch) -> None:
    answers = threading.Event()
    for number in range(20):
        (root / f"far-{number:02}").mkdir()
    monkeypatch.setattr(model_folders, "_FOLDER_SECONDS", 0.1)
    monkeypatch.setattr(model_folders, "_ALL_SECONDS", 0.35)
    monkeypatch.setattr(model_folders, "_folder", lambda path: answers.wait(30) and None)
    found = listed(root)
    answers.set()
    assert len(found) == 21
    assert sum("others in the models root" in (folder.problem or "") for folder in found.values()) >= 16


@pytest.fixture
def shut(root: Path, request: pytest.FixtureRequest) -> AgentConfig:
    """An agent whose models root is closed to it."""
    outer = root.parent
    config = AgentConfig(models_root=root, state_dir=Path(tempfile.mkdtemp(dir=outer)), llama_server="/bin/true")
    config.state_dir.chmod(0o777)
    outer.chmod(0o755)
    root.chmod(0o000)
    request.getfixturevalue("nobody")
    return config


async def test_a_root_that_is_closed_ends_nothing_and_is_named(shut: AgentConfig) -> None:
    config, root = shut, shut.models_root
    found = await capability.read_capabilities(config)
    assert found.folders == ()
    assert f"{root} is closed to the agent's user" in found.warnings[0]
    manager = DownloadManager(config)
    await manager.recover()
    await manager.close()
    with pytest.raises(AgentError, match="is closed to") as refused:
        await weights.find(spec(runtime=Runtime.LLAMA_CPP, source=SourceSpec(folder="good"), args=()), config)
    assert refused.value.code is AgentCode.SOURCE_MISSING
    assert (await host.host_status(root / "good")).disk_free_bytes is None, "a parent's disk is another one"


@pytest.mark.parametrize("place", ["/home", "/home/ann/models", "/root/models", "/run/user/1000/x"])
def test_a_place_that_the_unit_hides_is_named_with_its_drop_in(place: str) -> None:
    text = unreadable.why(Path(place), PermissionError(errno.EACCES, "Permission denied"))
    assert f"ProtectHome in the agent's unit hides {place}" in text
    assert f"ProtectHome=no and ReadWritePaths={place}" in text
    assert "systemctl edit mirbad-agent" in text
    assert "ProtectHome" not in unreadable.why(Path("/srv/models"), PermissionError(errno.EACCES, "x"))
    assert "ProtectHome" not in unreadable.why(Path("/homes/models"), PermissionError(errno.EACCES, "x"))


async def test_weights_on_a_file_system_that_hangs_refuse_the_start(root: Path, monkeypatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(weights, "_SECONDS", 0.1)
    monkeypatch.setattr("agent.runtimes.llama_cpp.find_folder", lambda *_: answers.wait(30))
    config = AgentConfig(models_root=root, state_dir=root.parent, llama_server="/bin/true")
    with pytest.raises(AgentError, match="does not answer") as refused:
        await weights.find(spec(runtime=Runtime.LLAMA_CPP, source=SourceSpec(folder="good"), args=()), config)
    answers.set()
    assert refused.value.code is AgentCode.SOURCE_MISSING
