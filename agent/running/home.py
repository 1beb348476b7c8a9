"""Whether a folder of records is where it was written, or a copy of it: a copy owns no engine.

A copied state folder holds the process ids of the engines of the original. An agent on the copy that took them for its
own would end them.
"""

import logging
from pathlib import Path

from agent.state import read_json, write_json

_log = logging.getLogger("mirbad.agent.instances")

_NAME = ".home"


def look(folder: Path) -> bool:
    """Whether `folder` ever was copied from another agent's; the records in a fresh copy are removed.

    It is remembered, since containers are also known by labels that original and copy share. A folder that was moved
    is the same folder, and so is one that was restored to its path.
    """
    seen = folder.stat()
    here = {"path": str(folder.resolve()), "device": seen.st_dev, "inode": seen.st_ino}
    try:
        kept = read_json(folder / _NAME)
    except ValueError:
        kept = None
    if not isinstance(kept, dict):
        write_json(folder / _NAME, {**here, "copy": False})
        return False
    is_same_folder = (kept.get("device"), kept.get("inode")) == (here["device"], here["inode"])
    if copied_now := not (is_same_folder or kept.get("path") == here["path"]):
        _log.warning("%s is a copy of another agent's folder: the engines in it are left to that agent", folder)
        for path in (*folder.glob("*.json"), *folder.glob("*.log")):
            path.unlink(missing_ok=True)
    is_copy = copied_now or kept.get("copy") is True
    if kept != (now := {**here, "copy": is_copy}):
        # last: a kill before this line finds the copy again and removes what is left
        write_json(folder / _NAME, now)
    return is_copy
