"""Reasons for which the agent cannot look at a path of the models root, as sentences with the next step."""

import errno
import os
from pathlib import Path

_HIDDEN_BY_UNIT = ("/home", "/root", "/run/user")
"""Folders that ``ProtectHome`` in the agent's unit hides."""

_WORDS = {
    errno.ESTALE: "its network file system changed on the server (stale file handle). Unmount it, and mount it again",
    errno.EIO: "the disk or network file system fails (input/output error). Check it in the kernel's log",
    errno.EROFS: "it is read-only. Mount it writable, and add it to ReadWritePaths of the agent's unit",
    errno.ELOOP: "its links form a loop. Remove the link",
    errno.ENOTCONN: "its network file system is not connected. Mount it again",
    errno.EHOSTDOWN: "the server of its network file system is down",
    errno.ETIMEDOUT: "the server of its network file system does not answer",
}


def why(path: Path, error: OSError) -> str:
    """Return the reason for which `path` cannot be looked at, as a sentence."""
    if isinstance(error, TimeoutError) and error.errno is None:
        return f"{path} does not answer. Check whether its network file system is mounted and its server is up."
    if error.errno in (errno.EACCES, errno.EPERM):
        return _forbidden(path)
    return f"{path} cannot be read: {_WORDS.get(error.errno or 0, error.strerror or str(error))}."


def _forbidden(path: Path) -> str:
    user = f"the agent's user (uid {os.getuid()})"
    return f"{path} is closed to {user}. Give it access to this folder and those above. {by_unit(path)}".rstrip()


def by_unit(path: Path) -> str:
    """Return the change to the agent's unit for a `path` that it hides; empty for any other."""
    place = _real(path)
    if not any(place == hidden or place.startswith(f"{hidden}/") for hidden in _HIDDEN_BY_UNIT):
        return ""
    return (
        f"ProtectHome in the agent's unit hides {place}: add a drop-in (`systemctl edit mirbad-agent`) with [Service], "
        f"ProtectHome=no and ReadWritePaths={place}, then `systemctl restart mirbad-agent`. Or use a folder outside."
    )


def _real(path: Path) -> str:
    """Return the path behind links, as far as they can be followed."""
    try:
        return os.path.realpath(path)
    except OSError:
        return str(path)
