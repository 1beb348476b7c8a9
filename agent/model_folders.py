"""The model folders of this machine. A folder that cannot be read costs no other, and has a reason."""

import logging
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent import clock, filesystem, models_root, patience, unreadable
from agent.common.reason import Reason
from agent.config import AgentConfig
from agent.downloads.folders import origin
from agent.filesystem import FileSystem
from agent.models_root import GONE, RootState
from agent.runtimes.source import files_of
from agent.wire.capability import FolderFile, ModelFolder

_MAX_FOLDERS = 500
_MAX_LISTED_FILES = 200
_FOLDER_SECONDS = 3.0
_ALL_SECONDS = 10.0
_NOT_MODELS = frozenset({"lost+found"})
"""Folders that a file system makes for itself."""

_log = logging.getLogger("mirbad.agent.models_root")


@dataclass(frozen=True)
class Listing:
    """The folders, and why the models root itself cannot be looked at. A missing root has no folders.

    `elsewhere` are those on file systems of their own, `changed` the reasons of those whose file system is not there.
    """

    folders: tuple[ModelFolder, ...] = ()
    problem: Reason | None = None
    elsewhere: Mapping[str, FileSystem] = field(default_factory=dict)
    changed: tuple[Reason, ...] = ()


@dataclass
class _Search:
    """A look at every folder of a root that `known` describes."""

    root: Path
    known: RootState
    elsewhere: dict[str, FileSystem] = field(default_factory=dict)
    changed: list[Reason] = field(default_factory=list)
    ends: float = field(default_factory=lambda: clock.monotonic() + _ALL_SECONDS)


def list_folders(root: Path) -> tuple[ModelFolder, ...]:
    """Return the model folders under `root`, as `read` does. Blocking."""
    return read(root).folders


def of_node(config: AgentConfig) -> Listing:
    """Return the model folders of this agent, as `read` does, and remember them.

    While the root is not the one that was there before, the folders of that one are listed with the reason.
    """
    root = config.models_root
    try:
        state = patience.within(_FOLDER_SECONDS, f"models root {root}", lambda: models_root.look(config))
    except OSError as error:
        return Listing(problem=_unusable(root, error))
    if state.problem is not None:
        unknown = tuple(ModelFolder(name=name, problem=state.problem) for name in state.folders)
        return Listing(unknown, state.problem)
    found = read(root, state)
    if found.problem is None:
        names = tuple(folder.name for folder in found.folders)
        try:
            patience.within(
                _FOLDER_SECONDS, f"models root {root}", lambda: models_root.remember(config, names, found.elsewhere)
            )
        except OSError as error:
            _log.warning("%s", unreadable.why(root, error))
    return found


def read(root: Path, state: RootState | None = None) -> Listing:
    """Return the model folders under `root`, links followed: at most 500, at most 200 files listed each.

    Never raises, and blocks for a bounded time. A folder that fails or hangs is listed with its problem, and so is one
    that `state` remembers on a file system that is not there.
    """
    try:
        names = patience.within(_FOLDER_SECONDS, f"models root {root}", lambda: _names(root))
    except OSError as error:
        return Listing() if error.errno in GONE else Listing(problem=_unusable(root, error))
    entries = [name for name in names if not name.startswith(".") and name not in _NOT_MODELS][:_MAX_FOLDERS]
    known = state or RootState()
    search = _Search(root, known, dict(known.elsewhere))
    found = [_within(search, name) for name in sorted({*entries, *known.elsewhere})]
    folders = tuple(folder for folder in found if folder is not None)
    listed = {folder.name for folder in folders}
    elsewhere = {name: place for name, place in search.elsewhere.items() if name in listed}
    return Listing(folders, None, elsewhere, tuple(search.changed))


def _unusable(root: Path, error: OSError) -> Reason:
    return Reason("models_root_unusable", unreadable.why(root, error))


def _names(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir())


def _within(search: _Search, name: str) -> ModelFolder | None:
    """Return one folder, or its problem; None for anything else than a folder."""
    path, left = search.root / name, min(_FOLDER_SECONDS, search.ends - clock.monotonic())
    if left <= 0:
        text = "It was not looked at: others in the models root take too long to answer."
        return ModelFolder(name=name, problem=text)
    try:
        found, place = patience.within(left, f"model folder {path}", lambda: _placed(path, search.known))
    except OSError as error:
        return None if error.errno in GONE else ModelFolder(name=name, problem=unreadable.why(path, error))
    if isinstance(found, Reason):
        search.changed.append(found)
        return ModelFolder(name=name, problem=found)
    if place is not None:
        search.elsewhere[name] = place
    else:
        search.elsewhere.pop(name, None)
    return found


def _placed(path: Path, known: RootState) -> tuple[ModelFolder | Reason | None, FileSystem | None]:
    """Return one folder, or why it is not the one before, and its file system when that is not the root's."""
    if (problem := models_root.folder_problem(path, known)) is not None:
        return problem, None
    folder = _folder(path)
    if folder is None or known.file_system is None:
        return folder, None
    place = filesystem.of_folder(path)
    return folder, None if place.point == known.file_system.point else place


def _folder(path: Path) -> ModelFolder | None:
    if not stat.S_ISDIR(path.stat().st_mode):
        return None
    failed: list[OSError] = []
    files: list[FolderFile] = []
    truncated = False
    for file in files_of(path, failed.append):
        if len(files) >= _MAX_LISTED_FILES:
            truncated = True
            break
        try:
            size = file.stat().st_size
        except OSError as error:
            if error.errno not in GONE:
                error.filename = error.filename or str(file)
                failed.append(error)
            continue
        files.append(FolderFile(path=str(file.relative_to(path)), size_bytes=size))
    repository, commit, missing = origin(path)
    return ModelFolder(
        name=path.name,
        files=tuple(files),
        total_bytes=sum(file.size_bytes for file in files),
        truncated=truncated,
        repository=repository,
        commit=commit,
        # What cannot be read is not known to be missing.
        missing=() if failed else missing,
        problem=unreadable.why(Path(str(failed[0].filename)), failed[0]) if failed else None,
    )
