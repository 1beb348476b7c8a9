"""Disks of a models root that go away and come back: folders that are swapped, and real mounts."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


def mount(*words: str | Path) -> bool:
    """Return whether `mount` did it."""
    return subprocess.run(["mount", *map(str, words)], stderr=subprocess.DEVNULL, check=False).returncode == 0


def umount(path: Path) -> None:
    subprocess.run(["umount", "-l", str(path)], stderr=subprocess.DEVNULL, check=False)


@dataclass
class Disk:
    """A disk with models: `root` is where the agent looks for them, `content` where they are while it is there."""

    root: Path
    content: Path
    come: Callable[[], object]
    go: Callable[[], object]


@contextmanager
def tmpfs(path: Path) -> Iterator[None]:
    path.mkdir(parents=True, exist_ok=True)
    if os.getuid() != 0 or not mount("-t", "tmpfs", "tmpfs", path):
        pytest.skip("only root may mount")
    try:
        yield
    finally:
        umount(path)


@contextmanager
def swapped(place: Path) -> Iterator[Disk]:
    """Another folder of the same file system in its place, as after a mistaken move: no device differs."""
    root, aside = place / "models", place / "aside"
    aside.mkdir(parents=True)
    root.mkdir()

    def swap() -> None:
        root.rename(place / "between")
        aside.rename(root)
        (place / "between").rename(aside)

    yield Disk(root, aside, swap, swap)


@contextmanager
def mounted(place: Path) -> Iterator[Disk]:
    """A disk that is mounted as the root."""
    with tmpfs(place / "disk"):
        content, root = place / "disk" / "models", place / "models"
        content.mkdir()
        root.mkdir()
        yield Disk(root, content, lambda: mount("--bind", content, root), lambda: umount(root))
        umount(root)


@contextmanager
def subfolder(place: Path) -> Iterator[Disk]:
    """A root that is a folder of a disk; without it the root does not exist."""
    with tmpfs(place / "disk"):
        content, point = place / "disk" / "models", place / "point"
        content.mkdir()
        point.mkdir()
        yield Disk(point / "models", content, lambda: mount("--bind", place / "disk", point), lambda: umount(point))
        umount(point)


@contextmanager
def bound(place: Path) -> Iterator[Disk]:
    """A folder of the same file system, mounted as the root."""
    content, root = place / "content", place / "models"
    content.mkdir(parents=True)
    root.mkdir()
    with tmpfs(place / "probe"):
        pass
    yield Disk(root, content, lambda: mount("--bind", content, root), lambda: umount(root))
    umount(root)


@contextmanager
def linked(place: Path) -> Iterator[Disk]:
    """A root that is a link to a folder of a disk."""
    with tmpfs(place / "disk"):
        content, point = place / "disk" / "models", place / "point"
        content.mkdir()
        point.mkdir()
        (place / "models").symlink_to(point / "models")
        yield Disk(place / "models", content, lambda: mount("--bind", place / "disk", point), lambda: umount(point))
        umount(point)


@contextmanager
def read_only(place: Path) -> Iterator[Disk]:
    """A disk to which no marker can be written."""
    with mounted(place) as disk:

        def come() -> None:
            disk.come()
            mount("-o", "remount,bind,ro", disk.root)

        yield Disk(disk.root, disk.content, come, disk.go)


KINDS = {made.__name__: made for made in (swapped, mounted, subfolder, bound, linked, read_only)}


def model(folder: Path, name: str = "m", size: int = 1000) -> None:
    """A model in `folder`."""
    (folder / name).mkdir(parents=True)
    (folder / name / "a.gguf").write_bytes(b"x" * size)


def copied(disk: Disk, other: Path, *, without: str = "") -> None:
    """The whole content of `disk` at `other`, marker included."""
    shutil.copytree(disk.content, other, dirs_exist_ok=True, ignore=shutil.ignore_patterns(without or "-"))
