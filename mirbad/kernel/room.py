"""Whether what is written to a folder arrives there: a full or read-only disk is told of before somebody loses work."""

import errno
import os
import tempfile
from pathlib import Path

_TRIED_BYTES = 64 * 1024
_LEAST_BYTES = 16 * 1024 * 1024

_WHY = {
    errno.ENOSPC: "The disk of {name} is full: nothing can be written. Make room on it.",
    errno.EDQUOT: "The disk quota of {name} is used up: nothing can be written. Make room, or raise the quota.",
    errno.EROFS: "The disk of {name} is read-only: nothing can be written. The kernel's log (dmesg) says why.",
    errno.EACCES: "{Name} cannot be written by this user. Give it back to the user that Mirbad runs as.",
    errno.ENOENT: "{Name} is gone. Mount its disk again, or restore it.",
    errno.EIO: "The disk of {name} does not work (input/output error). The kernel's log (dmesg) says more.",
}


def why_unwritable(folder: Path, name: str) -> str:
    """Why nothing, or nothing much, can be written to `folder`, as a sentence about `name`; empty when it can."""
    try:
        # Without its name in the folder, so that it is gone with this process whatever happens.
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            _write_all(file.fileno(), _TRIED_BYTES)
        space = os.statvfs(folder)
    except OSError as error:
        said = _WHY.get(error.errno or 0, "{Name} cannot be written: " + (error.strerror or str(error)) + ".")
        return said.format(name=name, Name=name[:1].upper() + name[1:])
    left = space.f_bavail * space.f_frsize
    if left < _LEAST_BYTES:
        return f"The disk of {name} is almost full: {left // 1024 // 1024} MiB are left. Make room on it."
    return ""


def _write_all(descriptor: int, count: int) -> None:
    while count:
        count -= os.write(descriptor, bytes(count))
