"""Engine images made of this machine's own Python, without any registry: its standard library, the few packages that an
engine script needs, and every shared library that they load."""

import io
import re
import subprocess
import sys
import sysconfig
import tarfile
from dataclasses import dataclass
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

_LEFT_OUT = frozenset(
    {"__pycache__", "test", "tests", "site-packages", "dist-packages", "idlelib", "tkinter", "turtledemo", "ensurepip",
     "lib2to3", "pydoc_data", "distutils"}
)  # fmt: skip
_ENGINES = Path(__file__).resolve().parents[2] / "agent" / "runtimes"
_LIBRARY = re.compile(r"(?:=>\s*)?(/\S+)\s+\(0x")


@dataclass(frozen=True)
class Recipe:
    """An image: the engine's script, and the distributions that it imports."""

    name: str
    script: str
    distributions: tuple[str, ...]


SIM = Recipe(
    "sim",
    "sim_engine.py",
    ("aiohttp", "aiohappyeyeballs", "aiosignal", "attrs", "frozenlist", "idna", "multidict", "propcache", "yarl",
     "typing_extensions"),
)  # fmt: skip
LLAMA = Recipe("llama", "llama_runner.py", ("xllamacpp",))


def python_in_image() -> str:
    """The interpreter's path, the same inside as outside."""
    return str(Path(sys.executable).resolve())


def entrypoint(recipe: Recipe) -> list[str]:
    """Return the entrypoint of the image; the command follows."""
    return [python_in_image(), "-I", f"/opt/engine/{recipe.script}"]


def build(recipe: Recipe) -> bytes:
    """A tar archive of the image's file system."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        tree = _Tree(archive)
        for folder in ("/tmp", "/proc", "/sys", "/dev", "/etc"):
            tree.folder(folder)
        tree.text("/etc/passwd", "root:x:0:0:root:/:/none\n")
        tree.text("/etc/nsswitch.conf", "hosts: files dns\n")
        tree.file(Path(sys.executable).resolve())
        stdlib = Path(sysconfig.get_path("stdlib"))
        for path in sorted(stdlib.rglob("*")):
            inside = path.relative_to(stdlib)
            if path.is_file() and not _LEFT_OUT & set(inside.parts) and not inside.parts[0].startswith("config-"):
                tree.file(path)
        packages = stdlib / "site-packages"
        for name in recipe.distributions:
            found = distribution(name)
            for file in found.files or []:
                source = Path(str(found.locate_file(file)))
                if source.is_file() and ".." not in file.parts and "__pycache__" not in file.parts:
                    tree.file(source, str(packages / str(file)))
        tree.file(_ENGINES / recipe.script, f"/opt/engine/{recipe.script}")
        tree.libraries()
    return buffer.getvalue()


class _Tree:
    """Writes files into an archive once, and remembers what needs shared libraries."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._names: set[str] = set()
        self._binaries: list[Path] = []

    def folder(self, name: str) -> None:
        info = tarfile.TarInfo(name.lstrip("/"))
        info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "/tmp" else 0o755
        self._archive.addfile(info)

    def text(self, name: str, content: str) -> None:
        info = tarfile.TarInfo(name.lstrip("/"))
        info.size, info.mode = len(content), 0o644
        self._archive.addfile(info, io.BytesIO(content.encode()))

    def file(self, source: Path, name: str | None = None) -> None:
        inside = (name or str(source)).lstrip("/")
        if inside in self._names:
            return
        self._names.add(inside)
        info = tarfile.TarInfo(inside)
        data = source.read_bytes()
        info.size, info.mode = len(data), 0o755
        self._archive.addfile(info, io.BytesIO(data))
        if data[:4] == b"\x7fELF":
            self._binaries.append(source)

    def libraries(self) -> None:
        """Every library that the binaries load, at its own path; those of glibc that are loaded by name as well."""
        found: set[str] = set()
        for start in range(0, len(self._binaries), 50):
            part = [str(path) for path in self._binaries[start : start + 50]]
            done = subprocess.run(["ldd", *part], capture_output=True, text=True, check=False)
            found |= set(_LIBRARY.findall(done.stdout))
        folders = {Path(path).parent for path in found if path.rpartition("/")[2].startswith("libc.so")}
        for folder in folders:
            found |= {str(folder / name) for name in ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")}
        for path in sorted(found):
            if Path(path).exists():
                self.file(Path(path).resolve(), path)


def has_distributions(recipe: Recipe) -> bool:
    """Return whether this Python has the distributions of the image."""
    names = {"typing_extensions": "typing_extensions", "attrs": "attr"}
    return all(find_spec(names.get(name, name)) is not None for name in recipe.distributions)
