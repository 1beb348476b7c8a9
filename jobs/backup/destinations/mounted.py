"""Shares as destinations: mounted by the system's own tools, in a mount namespace of this process.

The namespace ends with the process, however it ends, and with it the mount and the small memory file system that holds
the password for the moment of mounting: nothing is left to be cleaned up after a crash, and nobody else sees the share.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jobs.backup.destinations import folder
from jobs.backup.destinations.folder import FolderStore
from jobs.backup.destinations.settings import NfsDestination, SmbDestination
from jobs.errors import BackupDestinationFailed

_CLONE_NEWNS = 0x00020000
_TOOLS = {"smb": ("mount.cifs", "cifs-utils"), "nfs": ("mount.nfs", "nfs-common (Debian) or nfs-utils (Fedora)")}
_PLACES = "/usr/sbin:/sbin:/usr/bin:/bin"
_MOUNT_SECONDS = 40
_COMMON = "nosuid,nodev,noexec"
_RIGHT = (
    "Only root, or a process with CAP_SYS_ADMIN, may mount. Mount {what} yourself (/etc/fstab) and use a destination "
    "of the kind folder, or run Mirbad with that right."
)


@contextmanager
def opened_smb(settings: SmbDestination, secret: str, point: Path) -> Iterator[FolderStore]:
    """Mount an SMB share at the folder `point` and open its folder."""
    tool = _tool("smb", settings.where)
    inner = _private_folder(point, settings.where)
    credentials = inner / "credentials"
    lines = [f"username={settings.username}", f"password={secret}"]
    lines += [f"domain={settings.domain}"] if settings.domain else []
    descriptor = os.open(credentials, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("\n".join(lines) + "\n")
    try:
        options = (
            f"credentials={credentials},uid={os.getuid()},gid={os.getgid()},file_mode=0600,dir_mode=0700,{_COMMON}"
        )
        share = inner / "share"
        _mount((tool, f"//{settings.host}/{settings.share}", str(share), "-o", options), settings.where)
    finally:
        credentials.unlink()
    with folder.opened(_inside(share, settings.folder, settings.where)) as store:
        yield store


@contextmanager
def opened_nfs(settings: NfsDestination, secret: str, point: Path) -> Iterator[FolderStore]:
    """Mount an NFS export at the folder `point` and open its folder. There is no secret."""
    del secret
    tool = _tool("nfs", settings.where)
    share = _private_folder(point, settings.where) / "share"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    # "soft" has a server that goes away end the call instead of keeping it for ever.
    options = f"soft,timeo=100,retrans=2,retry=0,{_COMMON}"
    _mount((tool, f"{host}:{settings.export}", str(share), "-o", options), settings.where)
    with folder.opened(_inside(share, settings.folder, settings.where)) as store:
        yield store


def _tool(kind: str, where: str) -> str:
    name, package = _TOOLS[kind]
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":" + _PLACES)
    if found is None:
        raise BackupDestinationFailed(f"{name} is not installed, so {where} cannot be mounted. Install {package}.")
    return found


def _private_folder(point: Path, where: str) -> Path:
    """Begin a mount namespace, mount a file system in memory at `point`, and return it with an empty ``share``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise BackupDestinationFailed(_RIGHT.format(what=where))
    _run(("mount", "--make-rprivate", "/"), where)
    _run(("mount", "-t", "tmpfs", "-o", "size=64k,mode=0700,nosuid,nodev,noexec", "mirbad-backup", str(point)), where)
    (point / "share").mkdir(mode=0o700)
    return point


def _mount(command: Sequence[str], where: str) -> None:
    _run(command, where)


def _run(command: Sequence[str], where: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603  a mount tool of the system; no value is an option, and no shell is used
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_MOUNT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        text = f"{where} did not answer within {_MOUNT_SECONDS} s. Check that the server is on and reachable."
        raise BackupDestinationFailed(text) from None
    if done.returncode == 0:
        return
    message = " ".join(done.stderr.split())[:300] or f"exit code {done.returncode}"
    raise BackupDestinationFailed(f"{where} cannot be mounted: {message}.{_advice(message, where)}")


def _advice(message: str, where: str) -> str:
    low = message.lower()
    if "error(13)" in low or "permission denied" in low or "access denied" in low:
        return " Check user name, password, and that the server lets this machine in."
    if "error(19)" in low or "no such device" in low or "unknown filesystem" in low or "not supported" in low:
        return " The kernel of the master's machine has no driver for it: load the module (cifs or nfs)."
    if "not permitted" in low or "must be superuser" in low or "only root" in low:
        return " " + _RIGHT.format(what=where)
    if "error(2)" in low or "no such file" in low:
        return " Check the name of the share."
    return " Check host and share."


def _inside(share: Path, below: str, where: str) -> Path:
    found = (share / below).resolve()
    if not found.is_relative_to(share.resolve()):
        raise BackupDestinationFailed(f"The folder {below} of {where} leads out of the share.")
    if not found.is_dir():
        raise BackupDestinationFailed(f"The share has no folder {below}. Create it there.")
    return found
