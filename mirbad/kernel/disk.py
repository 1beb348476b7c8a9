"""A write test of a folder: a full or read-only disk is reported before anyone loses work."""

import errno
import os
import tempfile
from pathlib import Path

_TRIED_BYTES = 64 * 1024
_LEAST_BYTES = 16 * 1024 * 1024

_WHY = {
    errno.ENOSPC: "The disk of {name} is full. Free some space on it.",
    errno.EDQUOT: "The disk quota of {name} is used up. Free some space, or raise the quota.",
    errno.EROFS: "The disk of {name} is read-only. See the kernel's log (dmesg) for the cause.",
    errno.EACCES: "{Name} is not writable. Give the user that Mirbad runs as write permission.",
    errno.ENOENT: "{Name} does not exist. Mount its disk again, or restore it.",
    errno.EIO: "The disk of {name} has input/output errors. See the kernel's log (dmesg).",
}


def unwritable_reason(folder: Path, name: str) -> str:
    """Return the reason why `folder` cannot be written (or hardly), as a sentence about `name`; empty when it can."""
    try:
        # Without a name in the folder, so that the file is gone with this process in any case.
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            _write_all(file.fileno(), _TRIED_BYTES)
        space = os.statvfs(folder)
    except OSError as error:
        said = _WHY.get(error.errno or 0, "{Name} is not writable: " + (error.strerror or str(error)) + ".")
        return said.format(name=name, Name=name[:1].upper() + name[1:])
    left = space.f_bavail * space.f_frsize
    if left < _LEAST_BYTES:
        return f"The disk of {name} is almost full: {left // 1024 // 1024} MiB left. Free some space on it."
    return ""


def _write_all(descriptor: int, count: int) -> None:
    while count:
        count -= os.write(descriptor, bytes(count))
