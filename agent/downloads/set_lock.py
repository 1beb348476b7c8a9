"""The lock of one set on the disk of the models root, which two agents may share. All of it blocks."""

import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.state import NoLocks, exclusive

_log = logging.getLogger("mirbad.agent.downloads")
_LIMIT = 400


@dataclass(frozen=True)
class SetLock:
    """The held lock. `problem` says that the file system has none; the files of each agent are apart anyway."""

    path: Path
    holder: str
    problem: str = ""

    def lost(self) -> str:
        """Return a sentence when another agent took the lock meanwhile, so that locks do not hold here; else empty."""
        try:
            holder = self.path.read_bytes()[:_LIMIT].decode("utf-8", "replace").strip()
        except OSError:
            holder = ""
        if holder == self.holder:
            return ""
        other = f"process {holder.splitlines()[0]}" if holder else "another process"
        return (
            f"Locks do not hold on the disk of {self.path}: {other} holds the same one. Several agents may fetch the "
            "same files; each verifies its own. Mount the disk with locks (NFS: without nolock or local_lock)."
        )


@contextmanager
def hold(path: Path) -> Iterator[SetLock]:
    """Hold the lock file `path`. Raises Locked, OSError; a file system without locks is logged and noted."""
    # The second line tells apart agents of one process id, as in containers.
    holder = f"{os.getpid()} on {socket.gethostname()}\n{secrets.token_hex(8)}"
    problem = ""
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(path, holder))
        except NoLocks as error:
            problem = (
                f"The disk of {path.parent} has no file locks ({os.strerror(error.errno or 0)}). If another agent "
                "downloads the same set there, both fetch all of it. NFS: start its lock service (rpc.statd), or mount "
                "with NFS 4."
            )
            _log.warning("%s", problem)
        yield SetLock(path, holder, problem)
