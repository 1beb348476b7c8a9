"""The models root as this agent knows it: its file system, a marker in it, and the folders that were there.

A disk that is not mounted leaves an empty folder, and its models must not count as deleted. So the root is compared
with what was there before; while it differs, its folders are unknown and nothing is written to it. All of it blocks.
"""

import errno
import hashlib
import json
import logging
import os
import tempfile
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agent import filesystem
from agent.common.reason import Reason
from agent.config import AgentConfig
from agent.errors import AgentError
from agent.filesystem import FileSystem
from agent.state import ensure_private_dir, read_json, write_json
from agent.wire.errors import AgentCode

_log = logging.getLogger("mirbad.agent.models_root")

MARKER = ".mirbad-root.json"
CHANGED = "models_root_changed"
FOLDER_CHANGED = "model_folder_changed"
GONE = (errno.ENOENT, errno.ENOTDIR)
_RECORDS = "models-roots"
_MARKER_LIMIT = 4096
_DAMAGED = "damaged"
_ABOUT = "Mirbad recognises this models root by this file. Keep it here, and do not copy it to another disk."
_REMEDY = (
    "Mount it, and the agent goes on by itself; until then its models are unknown, and nothing is downloaded, started "
    "or deleted there. To use the folder as it is now, run `mirbad-agent accept-root` on this machine."
)

# One look at a time: two would write two markers.
_lock = threading.RLock()


class RootRecord(BaseModel):
    """The file on disk for a models root. `marker` is None for a root that the agent cannot write.

    `elsewhere` are the folders on other file systems: mounted in the root, or linked from it.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    marker: str | None
    file_system: FileSystem
    folders: tuple[str, ...] = ()
    elsewhere: dict[str, FileSystem] = {}


@dataclass(frozen=True)
class RootState:
    """The root at one moment. `problem` says why it is not the one that was there before.

    `folders` and `elsewhere` are remembered; `file_system` is None for a root that does not exist.
    """

    problem: Reason | None = None
    folders: tuple[str, ...] = ()
    elsewhere: Mapping[str, FileSystem] = field(default_factory=dict)
    file_system: FileSystem | None = None


def look(config: AgentConfig) -> RootState:
    """Compare the models root with the one before; a root that is new here is remembered. OSError."""
    with _lock:
        record, now = _compared(config)
    if record is None:
        return RootState()
    changed = now if isinstance(now, Reason) else None
    return RootState(changed, record.folders, record.elsewhere, record.file_system)


def remember(config: AgentConfig, folders: tuple[str, ...], elsewhere: Mapping[str, FileSystem]) -> None:
    """Remember the folders that were just listed, unless the root was replaced meanwhile. OSError."""
    with _lock:
        record, now = _compared(config)
        if record is not None and not isinstance(now, Reason):
            _write(config, record, record.model_copy(update={"folders": folders, "elsewhere": dict(elsewhere)}))


def note(config: AgentConfig, folder: str, *, removed: bool = False) -> None:
    """Remember a folder that was just made, or forget one that was `removed` on purpose. OSError."""
    with _lock:
        state = look(config)
        if state.problem is not None or state.file_system is None:
            return
        others = tuple(name for name in state.folders if name != folder)
        elsewhere = {name: place for name, place in state.elsewhere.items() if not removed or name != folder}
        remember(config, others if removed else (*others, folder), elsewhere)


def problem(config: AgentConfig, folder: str = "") -> Reason | None:
    """Return why the root, or the top folder of `folder`, is not the one before; None when it is. OSError."""
    state = look(config)
    if state.problem is not None or not folder:
        return state.problem
    top = folder.split("/", 1)[0]
    return folder_problem(config.models_root / top, state)


def require(config: AgentConfig, folder: str = "") -> None:
    """Raise AgentError MODELS_ROOT_CHANGED or, for the folder alone, SOURCE_MISSING for a `problem`. OSError."""
    if (found := problem(config, folder)) is not None:
        raise refusal(found)


def refusal(found: Reason) -> AgentError:
    """Return a `problem` as the refusal of a request."""
    return AgentError(AgentCode.MODELS_ROOT_CHANGED if found.code == CHANGED else AgentCode.SOURCE_MISSING, found)


def folder_problem(path: Path, state: RootState) -> Reason | None:
    """Return why a folder that was on a file system of its own is not there; None for any other. OSError."""
    before = state.elsewhere.get(path.name)
    if before is None:
        return None
    try:
        now = filesystem.of_folder(path)
    except OSError as error:
        if error.errno not in GONE:
            raise
        return Reason(FOLDER_CHANGED, f"The model folder {path} is gone: it was on {before}. {_REMEDY}")
    root = state.file_system
    if now.is_other(before) or (root is not None and now.point == root.point):
        return Reason(FOLDER_CHANGED, f"The model folder {path} was on {before}; now it is on {now}. {_REMEDY}")
    return None


def accept(config: AgentConfig) -> bool:
    """Forget the root that was there before, so that the present one counts; return whether one was known. OSError."""
    try:
        _file(config).unlink()
    except FileNotFoundError:
        return False
    return True


def _compared(config: AgentConfig) -> tuple[RootRecord | None, FileSystem | Reason | None]:
    """Return the record, updated, and the present file system or why it is another; OSError."""
    root, record = config.models_root, _read(config)
    try:
        now = filesystem.of_folder(root)
    except OSError as error:
        if error.errno not in GONE:
            raise
        if record is None or not record.folders:
            return None, None
        return record, Reason(CHANGED, f"The models root {root} is gone: it was on {record.file_system}. {_REMEDY}")
    marker = _marker(root)
    if record is not None and record.folders and (changed := _difference(record, root, now, marker)):
        return record, changed
    if marker is None or (marker == _DAMAGED and (record is None or record.marker is None)):
        marker = _write_marker(root, damaged=marker is not None)
    kept = record or RootRecord(path=str(root), marker=None, file_system=now)
    return _write(config, record, kept.model_copy(update={"marker": marker, "file_system": now})), now


def _difference(record: RootRecord, root: Path, now: FileSystem, marker: str | None) -> Reason | None:
    """Return why the root is not the one of `record`, which has folders."""
    before = record.file_system
    if record.marker is None:
        same = now.is_surely(before)
    elif marker == record.marker:
        # A copy of the whole root may move to another disk; an old copy lacks folders.
        same = not now.is_other(before) or all(os.path.lexists(root / name) for name in record.folders)
    else:
        same = False
    if same:
        return None
    if now.is_other(before) or record.marker is None:
        return Reason(CHANGED, f"The models root {root} was on {before}; now it is on {now}. {_REMEDY}")
    why = f"its file {MARKER} is missing" if marker is None else f"its file {MARKER} is of another root"
    return Reason(CHANGED, f"The models root {root} is not the folder that it was on {before}: {why}. {_REMEDY}")


def _marker(root: Path) -> str | None:
    """Return the id in the marker of `root`; None without one. OSError."""
    try:
        with (root / MARKER).open("rb") as file:
            found = json.loads(file.read(_MARKER_LIMIT))["id"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return _DAMAGED
    return found if isinstance(found, str) and found else _DAMAGED


def _write_marker(root: Path, *, damaged: bool) -> str | None:
    """Return the id of the new marker, or of one that another agent wrote first; None where none can be written."""
    text = json.dumps({"id": uuid.uuid4().hex, "about": _ABOUT})
    made = ""
    try:
        handle, made = tempfile.mkstemp(dir=root, prefix=f"{MARKER}.")
        with os.fdopen(handle, "w") as file:
            os.fchmod(handle, 0o644)
            file.write(text)
            file.flush()
            os.fsync(handle)
        if damaged:
            Path(made).replace(root / MARKER)
        else:
            _link(Path(made), root / MARKER)
        found = _marker(root)
    except OSError:
        found = None
    finally:
        if made:
            with suppress(OSError):
                Path(made).unlink(missing_ok=True)
    return None if found == _DAMAGED else found


def _link(made: Path, target: Path) -> None:
    """Give `made` the name `target` unless it is taken. OSError."""
    try:
        os.link(made, target)
    except FileExistsError:
        return
    except OSError:
        # A file system without hard links.
        if not target.exists():
            made.replace(target)


def _file(config: AgentConfig) -> Path:
    name = hashlib.sha256(os.fsencode(config.models_root)).hexdigest()[:16]
    return config.state_dir / _RECORDS / f"{name}.json"


def _read(config: AgentConfig) -> RootRecord | None:
    try:
        found = read_json(_file(config))
        return None if found is None else RootRecord.model_validate(found)
    except (ValueError, ValidationError):
        _log.warning("%s is not a valid record of a models root; ignored", _file(config).name)
        return None


def _write(config: AgentConfig, before: RootRecord | None, record: RootRecord) -> RootRecord:
    """Write `record` when it is new; a state folder that cannot be written is logged, and tried at the next look."""
    if record != before:
        try:
            ensure_private_dir(_file(config).parent)
            write_json(_file(config), record.model_dump(mode="json"))
        except OSError as error:
            _log.warning("the models root cannot be remembered: %s", error)
    return record
