"""One set on disk: what is there already, what is missing, and how the folder comes to be. All of it blocks.

While it is fetched a set lies in a hidden folder of the models root, on the same disk: parts by digest, verified files
under their paths. The model folder is made by one rename once every file is verified.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent.downloads import manifest as manifests
from agent.downloads.failures import DownloadFailed
from agent.downloads.manifest import Manifest
from agent.downloads.parts import digest_of
from agent.state import Locked, exclusive, sync_dir
from agent.wire.downloads import DownloadFile, DownloadSpec

HIDDEN = ".downloads"
_MARGIN_BYTES = 256 * 1024 * 1024
_FOLDER_MODE = 0o755

FreeBytes = Callable[[Path], int]


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write on the disk of `path`."""
    return shutil.disk_usage(path).free


@dataclass(frozen=True)
class Staging:
    """Where the set of one folder is made."""

    root: Path
    folder_name: str

    @property
    def folder(self) -> Path:
        """The model folder."""
        return self.root / self.folder_name

    @property
    def home(self) -> Path:
        """Everything of the set that is not finished."""
        return self.root / HIDDEN / self.folder_name

    @property
    def parts(self) -> Path:
        """Files that are being fetched."""
        return self.home / "parts"

    @property
    def tree(self) -> Path:
        """Verified files that wait for the others."""
        return self.home / "tree"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the set's lock. The kernel lets go of it when its holder dies, so none is ever stale. Raises Locked."""
        with exclusive(self.root / HIDDEN / f"{self.folder_name}.lock"):
            yield

    def prepare(self) -> None:
        """Make the hidden folders. DownloadFailed when the models root cannot be written."""
        try:
            self.parts.mkdir(parents=True, exist_ok=True)
            self.tree.mkdir(exist_ok=True)
            if self.folder.is_dir() and not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "not the agent's to write", str(self.folder))
        except OSError as error:
            text = (
                f"The agent (uid {os.getuid()}) cannot write the models root {self.root} ({error.strerror}); make it "
                "writable for the agent's user, then start the download again."
            )
            raise DownloadFailed("models_root_unwritable", text) from error

    def require_ours(self, spec: DownloadSpec) -> None:
        """DownloadFailed when the model folder is of another repository, so that nothing of it is overwritten."""
        found = manifests.read(self.folder)
        if found is not None and found.repository != spec.repository:
            text = f"The folder {self.folder_name} holds {found.repository}; choose another folder, or delete it first."
            raise DownloadFailed("folder_taken", text)
        if found is None and self.folder.exists():
            other = [f.path for f in spec.files if (self.folder / f.path).exists() and not self._same(f)]
            if other:
                text = (
                    f"The folder {self.folder_name} was not made by a download and holds another {other[0]}; choose "
                    "another folder, or delete it first."
                )
                raise DownloadFailed("folder_taken", text)

    def _same(self, file: DownloadFile) -> bool:
        path = self.folder / file.path
        try:
            return path.stat().st_size == file.size_bytes and digest_of(path, file) == file.digest
        except OSError:
            return False

    def missing(self, spec: DownloadSpec) -> list[DownloadFile]:
        """Files that are neither verified in the model folder nor waiting in the tree. Reads what it must."""
        known = manifests.read(self.folder)
        absent: list[DownloadFile] = []
        for file in spec.files:
            noted = known.of(file) if known else None
            # A file that nobody vouches for, or that changed since, is read again.
            if (noted is not None and noted.stands(self.folder)) or self._waits(file) or self._same(file):
                continue
            absent.append(file)
        return absent

    def _waits(self, file: DownloadFile) -> bool:
        """Whether the tree holds it; only verified files are put there, but by an earlier commit perhaps."""
        path = self.tree / file.path
        try:
            return path.stat().st_size == file.size_bytes and digest_of(path, file) == file.digest
        except OSError:
            return False

    def fetched_bytes(self, files: list[DownloadFile]) -> int:
        """Bytes of `files` that lie in parts already."""
        total = 0
        for file in files:
            part = self.parts / f"{file.digest.replace(':', '-')}.part"
            try:
                total += min(part.stat().st_size, file.size_bytes)
            except OSError:
                continue
        return total

    def require_room(self, files: list[DownloadFile], free: FreeBytes) -> None:
        """DownloadFailed when the disk has no room for what is still to come."""
        needed = sum(file.size_bytes for file in files) - self.fetched_bytes(files)
        if needed <= 0:
            return
        there = free(self.root)
        if needed + _MARGIN_BYTES > there:
            text = (
                f"The download needs {needed / 2**30:.1f} GiB more and the disk of {self.root} has {there / 2**30:.1f} "
                "GiB free; make room there first."
            )
            raise DownloadFailed("disk_full", text)

    def place(self, spec: DownloadSpec) -> None:
        """Put every verified file into the model folder and vouch for it. Repeatable after a crash at any line."""
        self._prune({file.path for file in spec.files})
        if not self.folder.exists():
            self._vouch(self.tree, spec)
            self.tree.replace(self.folder)
        else:
            for file in spec.files:
                waiting = self.tree / file.path
                if waiting.exists():
                    target = self.folder / file.path
                    target.parent.mkdir(parents=True, exist_ok=True)
                    waiting.replace(target)
                    sync_dir(target.parent)
            self._vouch(self.folder, spec)
        sync_dir(self.root)
        self.discard()

    def _prune(self, wanted: set[str]) -> None:
        """Take out what an earlier choice of files left; let engines of other users read the rest."""
        for folder, _, names in os.walk(self.tree):
            Path(folder).chmod(_FOLDER_MODE)
            for name in names:
                path = Path(folder) / name
                if str(path.relative_to(self.tree)) not in wanted:
                    path.unlink()

    def copy(self, source: DownloadFile, file: DownloadFile) -> None:
        """Put the verified content of `source` under another path, too."""
        target = self.tree / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        os.link(self.tree / source.path, target)

    def _vouch(self, folder: Path, spec: DownloadSpec) -> None:
        known = manifests.read(folder)
        made = Manifest(repository=spec.repository, commit=spec.commit, files=known.files if known else ())
        for file in spec.files:
            made = made.with_file(folder, file)
        manifests.write(folder, made)

    def discard(self) -> None:
        """Remove what is not finished."""
        shutil.rmtree(self.home, ignore_errors=True)


__all__ = ["FreeBytes", "Locked", "Staging", "free_bytes"]
