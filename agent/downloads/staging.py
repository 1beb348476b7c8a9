"""One set on disk: existing files, missing files, and the way to a complete folder. All of it blocks.

While a set is fetched it is in a hidden folder of the models root, on the same disk: parts by digest, verified files
under their paths. One rename creates the model folder once every file is verified. Agents that share a root have hidden
folders of their own, so that no two write one file, whether or not locks hold there.
"""

import errno
import os
import shutil
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from agent import filesystem, unreadable
from agent.clock import now
from agent.common.files import sync_dir
from agent.downloads import manifest as manifests
from agent.downloads import set_lock
from agent.downloads.failures import DownloadFailed
from agent.downloads.manifest import Manifest, VerifiedFile
from agent.downloads.set_lock import SetLock
from agent.state import Locked
from agent.wire.downloads import DownloadFile, DownloadSpec

HIDDEN = ".downloads"
_PARTS, _TREE = "parts", "tree"
_GONE_SECONDS = 2 * 3600.0
"""Longer than any pause of a running download."""

_FOLDER_MODE = 0o755


@dataclass(frozen=True)
class Staging:
    """The place where the set of one folder is assembled, by the agent `writer`."""

    root: Path
    folder_name: str
    writer: str = "agent"
    _checked: dict[Path, VerifiedFile] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The model folder."""
        return self.root / self.folder_name

    @property
    def shared(self) -> Path:
        """The hidden folder with everything unfinished of this set, of all agents."""
        return self.root / HIDDEN / self.folder_name

    @property
    def workdir(self) -> Path:
        """The part of it that this agent alone writes."""
        return self.shared / self.writer

    @property
    def parts(self) -> Path:
        """The folder of partly fetched files."""
        return self.workdir / _PARTS

    @property
    def tree(self) -> Path:
        """The folder of verified files that wait for the others."""
        return self.workdir / _TREE

    def locked(self) -> AbstractContextManager[SetLock]:
        """Hold the set's lock. The kernel releases it when its holder dies, so it is never stale.

        Raises Locked, OSError. A file system without locks is noted in the SetLock.
        """
        return set_lock.hold(self.root / HIDDEN / f"{self.folder_name}.lock")

    def prepare(self) -> None:
        """Create the hidden folders. DownloadFailed when the models root is not writable."""
        try:
            self.workdir.mkdir(parents=True, exist_ok=True)
            self.parts.mkdir(parents=True, exist_ok=True)
            self.tree.mkdir(exist_ok=True)
            if self.folder.is_dir() and not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(13, "not writable for the agent", str(self.folder))
        except OSError as error:
            text = (
                f"The agent (uid {os.getuid()}) cannot write to the models root {self.root} ({error.strerror}). Make "
                f"it writable for the agent's user, then start the download again. {unreadable.by_unit(self.root)}"
            ).rstrip()
            raise DownloadFailed("models_root_unwritable", text) from error

    def inherit(self) -> None:
        """Continue with the files of agents that are gone. For the holder of a lock that holds.

        Files that were written lately are left alone: their agent may run, where locks do not hold after all.
        """
        with suppress(OSError):
            others = [path for path in self.shared.iterdir() if path.name not in (self.writer, _PARTS, _TREE)]
            gone = [path for path in others if _last_write(path) < now().timestamp() - _GONE_SECONDS]
            # Before agents had folders of their own, their files were here.
            earlier = [] if filesystem.of_folder(self.root).is_network else [self.shared]
            for source in (*earlier, *gone):
                for kind, target in ((_PARTS, self.parts), (_TREE, self.tree)):
                    _move_missing(source / kind, target)
                if source != self.shared:
                    shutil.rmtree(source, ignore_errors=True)

    def require_ours(self, spec: DownloadSpec) -> None:
        """Raise DownloadFailed when the model folder is of another repository, to overwrite none of it."""
        found = manifests.read(self.folder)
        if found is not None and found.repository != spec.repository:
            text = (
                f"The folder {self.folder_name} contains {found.repository}. Choose another folder, or delete it first."
            )
            raise DownloadFailed("folder_taken", text)
        if found is None and self.folder.exists():
            other = [f.path for f in spec.files if (self.folder / f.path).exists() and not self._is_same(f)]
            if other:
                text = (
                    f"The folder {self.folder_name} was not created by a download and contains another {other[0]}. "
                    "Choose another folder, or delete it first."
                )
                raise DownloadFailed("folder_taken", text)

    def _is_same(self, file: DownloadFile) -> bool:
        return self._read(self.folder, file) is not None

    def _read(self, folder: Path, file: DownloadFile) -> VerifiedFile | None:
        """Return the entry of a file of `folder` with the right digest; it is read unless that was just done."""
        path = folder / file.path
        known = self._checked.get(path)
        if known is not None and known.digest == file.digest and known.is_identical(folder):
            return known
        found = manifests.verified(folder, file)
        if found is not None:
            self._checked[path] = found
        return found

    def note_fetched(self, file: DownloadFile) -> None:
        """Note the file that was just fetched and verified, as it is in the tree."""
        if (found := manifests.fetched(self.tree, file)) is not None:
            self._checked[self.tree / file.path] = found

    def missing(self, spec: DownloadSpec) -> list[DownloadFile]:
        """Return the files that are verified neither in the model folder nor in the tree. Reads them as needed."""
        known = manifests.read(self.folder)
        absent: list[DownloadFile] = []
        for file in spec.files:
            noted = known.of(file) if known else None
            # A file that is not in the manifest, or has changed since, is read again.
            if (noted is not None and noted.is_identical(self.folder)) or self._is_staged(file) or self._is_same(file):
                continue
            absent.append(file)
        return absent

    def _is_staged(self, file: DownloadFile) -> bool:
        """Return whether the verified file is in the tree, where it may also be from an earlier commit."""
        return self._read(self.tree, file) is not None

    def outstanding_bytes(self, file: DownloadFile, *, is_fetched: bool = True) -> int:
        """Return the bytes of a file that are not on disk yet. Without `is_fetched` it is known not to be whole."""
        with suppress(OSError):
            part = self.parts / f"{file.digest.replace(':', '-')}.part"
            return max(file.size_bytes - part.stat().st_size, 0)
        with suppress(OSError):
            if is_fetched and (self.tree / file.path).stat().st_size == file.size_bytes:
                return 0
        return file.size_bytes

    def place(self, spec: DownloadSpec) -> None:
        """Move every verified file into the model folder and write its manifest. Repeatable after a crash.

        DownloadFailed when a file there is not the one that was verified.
        """
        self._prune({file.path for file in spec.files})
        if not self._place_whole(spec):
            known = manifests.read(self.folder)
            for file in spec.files:
                self._place_file(file, known)
            self._write_manifest(self.folder, spec)
        sync_dir(self.root)
        self.discard()

    def _place_whole(self, spec: DownloadSpec) -> bool:
        """Rename the tree to the model folder; False when there is one, perhaps since this moment."""
        if self.folder.exists():
            return False
        self._write_manifest(self.tree, spec)
        try:
            self.tree.replace(self.folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            (self.tree / manifests.NAME).unlink(missing_ok=True)
            return False
        return True

    def _place_file(self, file: DownloadFile, known: Manifest | None) -> None:
        """Move one file into the model folder, unless another agent has placed the same there: engines may have it."""
        waiting, target = self.tree / file.path, self.folder / file.path
        if not waiting.exists():
            return
        noted = known.of(file) if known else None
        if noted is not None and noted.is_identical(self.folder):
            waiting.unlink()
            return
        mine = self._read(self.tree, file)
        target.parent.mkdir(parents=True, exist_ok=True)
        waiting.replace(target)
        sync_dir(target.parent)
        self._checked.pop(target, None)
        if mine is not None and (moved := mine.moved_to(self.folder, file.path)) is not None:
            self._checked[target] = moved

    def _prune(self, selected: set[str]) -> None:
        """Remove files of an earlier selection; make folders readable for the users of engines."""
        for folder, _, names in os.walk(self.tree):
            Path(folder).chmod(_FOLDER_MODE)
            for name in names:
                path = Path(folder) / name
                if str(path.relative_to(self.tree)) not in selected:
                    path.unlink()

    def copy(self, source: DownloadFile, file: DownloadFile) -> None:
        """Link the verified content of `source` under another path, or copy it where links do not exist."""
        target = self.tree / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        mine = self._checked.pop(self.tree / source.path, None)
        try:
            os.link(self.tree / source.path, target)
        except OSError:
            shutil.copyfile(self.tree / source.path, target)
        for path in (source.path, file.path):
            if mine is not None and (linked := mine.moved_to(self.tree, path)) is not None:
                self._checked[self.tree / path] = linked

    def _write_manifest(self, folder: Path, spec: DownloadSpec) -> None:
        """Write the manifest of the files as they are in `folder`. DownloadFailed for one that was not verified."""
        known = manifests.read(folder)
        made = Manifest(repository=spec.repository, commit=spec.commit, files=known.files if known else ())
        for file in spec.files:
            noted = known.of(file) if known else None
            if noted is None or not noted.is_identical(folder):
                noted = self._read(folder, file)
            if noted is None:
                text = (
                    f"Another program changed {file.path} in {self.folder_name} while it was moved into place. Start "
                    "the download again; if another agent uses this models root, let one of them download."
                )
                raise DownloadFailed("placed_file_changed", text)
            made = made.with_file(noted)
        manifests.write(folder, made)

    def discard(self) -> None:
        """Remove everything unfinished of this agent."""
        shutil.rmtree(self.workdir, ignore_errors=True)
        with suppress(OSError):
            self.shared.rmdir()


def _last_write(folder: Path) -> float:
    """Return the time of the last change of a folder or a file in it. OSError."""
    paths = [folder, *folder.rglob("*")]
    return max(path.lstat().st_mtime for path in paths)


def _move_missing(source: Path, target: Path) -> None:
    """Move the files below `source` to the same paths below `target`, unless they are there. OSError."""
    for folder, _, names in os.walk(source):
        for name in names:
            place = target / (Path(folder) / name).relative_to(source)
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).replace(place)
    shutil.rmtree(source, ignore_errors=True)


__all__ = ["Locked", "Staging"]
