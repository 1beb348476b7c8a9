"""Detection of a copied folder of records: a copy owns no engine.

A copied state folder holds the process ids of the original's engines. An agent on the copy that adopted them would stop
them.
"""

import logging
from pathlib import Path

from agent.state import read_json, write_json

_log = logging.getLogger("mirbad.agent.instances")

_NAME = ".home"


def is_copy(folder: Path) -> bool:
    """Return whether `folder` was ever copied from another agent's; the records in a fresh copy are removed.

    The result is stored, because containers are also found by labels that original and copy share. A folder that was
    moved, or restored to its path, is the same folder.
    """
    status = folder.stat()
    here = {"path": str(folder.resolve()), "device": status.st_dev, "inode": status.st_ino}
    try:
        kept = read_json(folder / _NAME)
    except ValueError:
        kept = None
    if not isinstance(kept, dict):
        write_json(folder / _NAME, {**here, "copy": False})
        return False
    is_same_folder = (kept.get("device"), kept.get("inode")) == (here["device"], here["inode"])
    if copied_now := not (is_same_folder or kept.get("path") == here["path"]):
        _log.warning("%s is a copy of another agent's folder; its engines are left to that agent", folder)
        for path in (*folder.glob("*.json"), *folder.glob("*.log")):
            path.unlink(missing_ok=True)
    is_copy = copied_now or kept.get("copy") is True
    if kept != (now := {**here, "copy": is_copy}):
        # Written last: an agent that is killed before this line detects the copy again and removes the rest.
        write_json(folder / _NAME, now)
    return is_copy
