"""Model folders: their origin, size and removal. All of it blocks."""

import os
import secrets
import shutil
from pathlib import Path

from agent import unreadable
from agent.common.files import sync_dir
from agent.downloads import manifest, names
from agent.downloads.staging import HIDDEN
from agent.errors import AgentError
from agent.wire.errors import AgentCode


def find(root: Path, name: str) -> Path:
    """Return the folder `name`. AgentError SPEC_REJECTED for an invalid name, NOT_FOUND."""
    if not name or "/" in name or "\0" in name or name.startswith("."):
        names.check_folder("")
    path = root / name
    try:
        found = path.is_dir()
    except OSError as error:
        raise AgentError(AgentCode.SOURCE_MISSING, unreadable.why(path, error)) from error
    if not found:
        raise AgentError(AgentCode.NOT_FOUND, f"this node has no model folder {name}")
    return path


def origin(folder: Path) -> tuple[str | None, str | None, tuple[str, ...]]:
    """Return repository, commit and missing files of the download that filled `folder`; None for another origin."""
    found = manifest.read(folder)
    if found is None:
        return None, None, ()
    return found.repository, found.commit, found.missing(folder)


def size_of(folder: Path) -> int:
    """Return the bytes of all files in `folder`, hidden ones too; links count as links."""
    total = 0
    for where, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(where) / name).lstat().st_size
            except OSError:
                continue
    return total


def remove(root: Path, name: str) -> int:
    """Remove a folder and return the freed bytes; a link is removed as a link, which frees nothing.

    One rename hides it, then its bytes are removed. AgentError DELIVERY_FAILED when some of it remains; then the rest
    is renamed back, so that it stays visible.
    """
    path = find(root, name)
    if path.is_symlink():
        path.unlink()
        return 0
    before = size_of(path)
    try:
        (root / HIDDEN).mkdir(exist_ok=True)
        trash = root / HIDDEN / f"trash-{secrets.token_hex(8)}"
        path.replace(trash)
        sync_dir(root)
    except OSError as error:
        raise _removal_failed(name, error.strerror or str(error), before, 0) from error
    problems: list[str] = []
    # `onexc` needs Python 3.12
    shutil.rmtree(trash, onerror=lambda _, where, info: problems.append(f"{Path(where).name}: {info[1]}"))
    if trash.exists():
        remaining = size_of(trash)
        trash.replace(path)
        raise _removal_failed(name, problems[0] if problems else "some files remain", before, remaining)
    return before


def _removal_failed(name: str, why: str, before: int, freed_to: int) -> AgentError:
    text = (
        f"The folder {name} could not be removed completely ({why}). Change the owner of its files to the agent's "
        f"user (uid {os.getuid()}) and delete it again."
    )
    freed = before - freed_to if freed_to else 0
    return AgentError(AgentCode.DELIVERY_FAILED, text, {"freedBytes": freed})
