"""The archives that the master serves: one for now, for every architecture, installed with pip by hashes."""

import gzip
import hashlib
import io
import re
import tarfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from agent import __version__ as agent_version
from mirbad.bundles import wheel

ROOT = Path(__file__).resolve().parents[2]
ANY = "linux-any"
"""The runtime id of an archive that is not bound to an architecture."""
_DEPLOY_FILES = ("install.sh", "mirbad-agent.service", "agent.json.example", "README.md")
_EXECUTABLE = frozenset({"install.sh"})


@dataclass(frozen=True, slots=True)
class Bundle:
    """One archive. `folder` is the one folder in it."""

    rid: str
    version: str
    folder: str
    sha256: str
    content: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of the archive."""
        return len(self.content)

    @property
    def path(self) -> str:
        """The address of the archive on the master."""
        return f"/agent/bundles/{self.rid}.tar.gz"


@lru_cache(maxsize=1)
def bundles() -> tuple[Bundle, ...]:
    """Return the archives of this master, built once per process; the same bytes in every process of one version."""
    return (build(),)


def find(rid: str) -> Bundle | None:
    """Return the archive for a runtime id."""
    return next((bundle for bundle in bundles() if bundle.rid == rid), None)


def build(root: Path = ROOT) -> Bundle:
    """Build the archive from the source below `root`. It depends only on the content of the files."""
    locked = (root / "requirements" / "agent.txt").read_bytes()
    needs = [line.partition("#")[0].strip() for line in (root / "requirements" / "agent.in").read_text().splitlines()]
    folder = f"mirbad-agent-{agent_version}"
    members: dict[str, bytes] = {
        wheel.file_name(agent_version): wheel.build(root / "agent", agent_version, [need for need in needs if need]),
        "requirements-agent.txt": _without_sources(locked),
    }
    members |= {name: (root / "deploy" / "agent" / name).read_bytes() for name in _DEPLOY_FILES}
    content = _pack(folder, members)
    return Bundle(ANY, agent_version, folder, hashlib.sha256(content).hexdigest(), content)


def _without_sources(locked: bytes) -> bytes:
    # comments name the files that a package is for, which is noise on another machine
    return re.sub(rb"(?m)^\s*#.*\n", b"", locked)


def _pack(folder: str, members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, filename="") as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, data in sorted(members.items()):
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(data)
            entry.mode = 0o755 if name in _EXECUTABLE else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
