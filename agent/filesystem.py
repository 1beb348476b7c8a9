"""The file system that a folder is on, as it can be recognised after a restart. Linux; all of it blocks."""

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict

_BY_UUID = Path("/dev/disk/by-uuid")
_MOUNTS = Path("/proc/self/mountinfo")
_OPEN_FILES = Path("/proc/self/fdinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_OWN_ID = frozenset({"ext2", "ext3", "ext4", "btrfs", "zfs", "bcachefs"})
"""Types whose `f_fsid` is made from the file system's own id. btrfs and zfs have one for each subvolume."""

_NETWORK = ("nfs", "cifs", "smb", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "9p", "virtiofs", "fuse.")


class FileSystem(BaseModel):
    """A file system, and the folder in it. An empty text is unknown.

    `source` is its device or server, `point` where it is mounted, `within` the folder of it that is mounted there.
    """

    model_config = ConfigDict(frozen=True)

    type: str = ""
    source: str = ""
    point: str = ""
    within: str = ""
    uuid: str = ""
    fsid: str = ""
    total_bytes: int = 0
    inode: int = 0

    def __str__(self) -> str:
        """Return it as a person knows it: type, device or server, UUID, mount point."""
        known = [
            self.source,
            f"UUID {self.uuid}" if self.uuid else "",
            f"mounted at {self.point}" if self.point else "",
        ]
        about = ", ".join(filter(None, known))
        return f"{self.type or 'unknown'} ({about})" if about else self.type or "unknown"

    @property
    def is_network(self) -> bool:
        """Return whether other machines may use it, too."""
        return self.type.startswith(_NETWORK)

    def is_other(self, before: "FileSystem") -> bool:
        """Return whether this is known to be another file system than `before`, whatever is in its folders."""
        return self._compare(before) is False

    def is_surely(self, before: "FileSystem") -> bool:
        """Return whether this is the folder of `before` itself; for a folder that nothing can be written to."""
        known = self._compare(before)
        if known is None:
            known = self.total_bytes == before.total_bytes
        return known and self.inode == before.inode

    def _compare(self, before: "FileSystem") -> bool | None:
        """Return whether both are one file system; None when that cannot be known."""
        if self.type and before.type and _family(self.type) != _family(before.type):
            return False
        if self.uuid and before.uuid and self.uuid != before.uuid:
            return False
        if self.fsid and before.fsid:
            return self.fsid == before.fsid
        if self.uuid and before.uuid:
            return True
        if self.is_network and self.source == before.source:
            return True
        return None


def _family(kind: str) -> str:
    return next((name for name in ("nfs", "ext", "smb") if kind.startswith(name)), kind).replace("cifs", "smb")


def of_folder(path: Path) -> FileSystem:
    """Return the file system of the folder at `path`, links followed. OSError."""
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found, volume = os.fstat(descriptor), os.fstatvfs(descriptor)
        kind, source, point, within = _mount(descriptor)
    finally:
        os.close(descriptor)
    return FileSystem(
        type=kind,
        source=source,
        point=point,
        within=within,
        uuid=_uuid(source, found.st_dev),
        fsid=f"{volume.f_fsid:x}" if kind in _OWN_ID and volume.f_fsid else "",
        total_bytes=volume.f_blocks * volume.f_frsize,
        inode=found.st_ino,
    )


def _mount(descriptor: int) -> tuple[str, str, str, str]:
    """Return type, source, mount point and mounted folder of an open folder; empty when the kernel does not say."""
    try:
        lines = (_OPEN_FILES / str(descriptor)).read_text().splitlines()
        number = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
        for line in _MOUNTS.read_text(errors="surrogateescape").splitlines():
            fields = line.split(" ")
            if fields[0] == number:
                end = fields.index("-", 6)
                return fields[end + 1], _plain(fields[end + 2]), _plain(fields[4]), _plain(fields[3])
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    return "", "", "", ""


def _plain(text: str) -> str:
    """Return a field of mountinfo, in which blanks are octal, as text that JSON holds."""
    plain = _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
    return plain.encode("utf-8", "replace").decode()


def _uuid(source: str, device: int) -> str:
    """Return the UUID under which the system lists a block device; empty when it lists none."""
    devices = {device} if os.major(device) else set()
    if source.startswith("/dev/"):
        # A subvolume has a device number of its own; its source is the device.
        with suppress(OSError):
            node = Path(source).stat()
            if stat.S_ISBLK(node.st_mode):
                devices.add(node.st_rdev)
    try:
        entries = sorted(_BY_UUID.iterdir()) if devices else []
    except OSError:
        return ""
    for entry in entries:
        with suppress(OSError):
            if entry.stat().st_rdev in devices:
                return entry.name
    return ""
