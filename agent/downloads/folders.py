"""Model folders: what a download left in them, and how one goes. All of it blocks."""

import os
import secrets
import shutil
from pathlib import Path

from agent.downloads import manifest, names
from agent.downloads.staging import HIDDEN
from agent.errors import AgentError
from agent.state import sync_dir
from agent.wire.errors import AgentCode


def find(root: Path, name: str) -> Path:
    """The folder `name`. AgentError SPEC_REJECTED for what can be none, NOT_FOUND."""
    if not name or "/" in name or "\0" in name or name.startswith("."):
        names.check_folder("")
    path = root / name
    if not path.is_dir():
        raise AgentError(AgentCode.NOT_FOUND, f"this node has no model folder {name}")
    return path


def origin(folder: Path) -> tuple[str | None, str | None, tuple[str, ...]]:
    """Repository, commit, and what is missing of the download that filled `folder`; None for another origin."""
    found = manifest.read(folder)
    if found is None:
        return None, None, ()
    return found.repository, found.commit, found.missing(folder)


def size_of(folder: Path) -> int:
    """Bytes of all files in `folder`, hidden ones too; links count as links."""
    total = 0
    for where, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(where) / name).lstat().st_size
            except OSError:
                continue
    return total


def remove(root: Path, name: str) -> int:
    """Remove a folder whole and return the bytes that are gone; a link only as a link, which frees nothing.

    It disappears by one rename, then its bytes go. AgentError DELIVERY_FAILED when something of it stays; then it is
    put back, to be seen.
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
        raise _kept(name, error.strerror or str(error), before, 0) from error
    problems: list[str] = []
    # `onexc` came with 3.12
    shutil.rmtree(trash, onerror=lambda _, where, info: problems.append(f"{Path(where).name}: {info[1]}"))
    if trash.exists():
        remaining = size_of(trash)
        trash.replace(path)
        raise _kept(name, problems[0] if problems else "something of it stays", before, remaining)
    return before


def _kept(name: str, why: str, before: int, freed_to: int) -> AgentError:
    text = (
        f"The folder {name} could not be removed whole ({why}); make its files the agent's (uid {os.getuid()}) and "
        "delete it again."
    )
    freed = before - freed_to if freed_to else 0
    return AgentError(AgentCode.DELIVERY_FAILED, text, {"freedBytes": freed})
