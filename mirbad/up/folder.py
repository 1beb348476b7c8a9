"""The data folder: created, private, writable, and locked by one `make up` at a time."""

import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from agent.common.files import write_text
from mirbad.up.errors import CannotStart

_OWN_PARTS = frozenset(
    {"agent", "audit", "bootstrap", "logs", "lost+found", "pki", "recovery", "run", "secrets", "snapshots", "static"}
    | {"takeover", "uploads"}
)
SOCKET_PATH_LIMIT = 107
"""Bytes of a Unix socket's path, without the terminating zero."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of a running `make up` for other commands, in ``MIRBAD_DATA/run/up.json``."""

    pid: int
    started_at: str
    runtime_dir: str
    redis_url: str
    web_url: str


def prepare(data: Path) -> bool:
    """Create the data folder and its private parts. Return whether other users could open it before.

    Raises CannotStart with the fix.
    """
    if re.search(r"\s[;#]", str(data)) or not str(data).isprintable():
        # both start a comment in supervisord's configuration
        raise CannotStart(f"MIRBAD_DATA={str(data)!r} contains ' ;', ' #' or a control character. Rename it.")
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_foreign(data)
        exposed = bool(stat.S_IMODE(data.stat().st_mode) & 0o077)
        if exposed:
            data.chmod(0o700)
        for part in ("secrets", "run", "uploads", "agent", "agent/models"):
            (data / part).mkdir(mode=0o700, exist_ok=True)
        for part in ("logs", "audit", "static"):
            (data / part).mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=data) as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
    except OSError as error:
        raise CannotStart(
            f"The data folder {data} is not writable ({error.strerror}). "
            "Give this user write access to it, or set MIRBAD_DATA to another folder."
        ) from error
    return exposed


@dataclass(frozen=True, slots=True)
class Tightened:
    """The entries of a data folder that had rights for other users: those that are private now, and those that are not.

    `exposed` is whether the data folder itself let other users in.
    """

    closed: tuple[Path, ...] = ()
    open: tuple[Path, ...] = ()
    exposed: bool = False

    def sentences(self) -> list[str]:
        """Return the sentences to report, none when all was private."""
        lines = []
        if self.exposed:
            lines.append(
                "Other users of this machine could open the data folder; only this user can now. "
                "Replace its secrets if somebody may have read them."
            )
        if self.closed:
            lines.append(f"Took the rights of other users from {_named(self.closed)}.")
        if self.open:
            lines.append(
                f"Other users have rights on {_named(self.open)}, and this user cannot change that. "
                "Run chmod -R go= on it as its owner."
            )
        return lines


def _named(paths: tuple[Path, ...]) -> str:
    rest = len(paths) - 1
    return f"{paths[0]}{f' and {rest} more' if rest else ''}"


def tighten(data: Path, *, exposed: bool) -> Tightened:
    """Take the rights of other users from everything in the data folder but the models, which are no secret."""
    closed, left = [], []
    for entry in _entries(data):
        try:
            mode = entry.lstat().st_mode
            if stat.S_ISLNK(mode) or not mode & 0o077:
                continue
            entry.chmod(stat.S_IMODE(mode) & 0o700)
            closed.append(entry)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(entry)
    return Tightened(tuple(closed), tuple(left), exposed)


def _entries(data: Path) -> Iterator[Path]:
    models = data / "agent" / "models"
    for here, folders, names in os.walk(data):
        folder = Path(here)
        folders[:] = [name for name in folders if folder / name != models and not (folder / name).is_symlink()]
        yield from (folder / name for name in (*folders, *names))


def _refuse_foreign(data: Path) -> None:
    """Refuse a folder with other content: making it private could break the machine."""
    names = {entry.name for entry in data.iterdir()}
    others = sorted(names - _OWN_PARTS)
    if others and "secrets" not in names:
        raise CannotStart(
            f"The data folder {data} contains other files ({', '.join(others[:3])}{', …' if others[3:] else ''}). "
            "Set MIRBAD_DATA to a new or empty folder, or to one that Mirbad made."
        )


class Lock:
    """The lock of a data folder: one `make up` at a time. The kernel releases it with the process, even in a crash."""

    def __init__(self, data: Path) -> None:
        self._path = data / "run" / "up.lock"
        self._data = data
        self._descriptor = -1

    def take(self) -> None:
        """Lock the folder until this process ends; again does nothing. Raises CannotStart naming its holder."""
        if self._descriptor >= 0:
            return
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = self._path.read_text().strip() or "unknown"
            os.close(self._descriptor)
            self._descriptor = -1
            raise CannotStart(
                f"Mirbad already runs on {self._data} (process {holder}), or is just ending there. "
                "Stop it with Ctrl-C in its terminal and wait for its end, or set MIRBAD_DATA to another folder."
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())


def is_running(data: Path) -> bool:
    """Return whether a `make up` holds the folder now."""
    try:
        descriptor = os.open(data / "run" / "up.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def runtime_dir(data: Path) -> Path:
    """Return a short private folder for sockets, the same for the same data folder. Raises CannotStart.

    Socket paths end at 108 bytes, so it cannot be inside an arbitrary data folder.
    """
    name = f"mirbad-{hashlib.sha256(os.fsencode(data)).hexdigest()[:12]}"
    bases = [Path(given) for given in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp") if given]  # noqa: S108  ownership and mode are checked
    for base in bases:
        if not (base.is_dir() and os.access(base, os.W_OK | os.X_OK)):
            continue
        path = base / (name if base == bases[0] and "XDG_RUNTIME_DIR" in os.environ else f"{name}-{os.getuid()}")
        if len(os.fsencode(path / "supervisord.sock.0000000")) > SOCKET_PATH_LIMIT:
            continue
        path.mkdir(mode=0o700, exist_ok=True)
        seen = path.lstat()
        if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid() and not seen.st_mode & 0o077:
            return path
    raise CannotStart(
        "No short private folder for sockets was found. Set TMPDIR to a short path that this user can write, "
        f"and remove a folder {name}* there that belongs to somebody else."
    )


def read_facts(data: Path) -> RunFacts | None:
    """Read the facts of the last `make up`; None when it ended cleanly or never ran."""
    try:
        return RunFacts(**json.loads((data / "run" / "up.json").read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def write_facts(data: Path, facts: RunFacts) -> None:
    """Tell other commands where this run is found."""
    write_text(data / "run" / "up.json", json.dumps(asdict(facts)))


def forget_facts(data: Path) -> None:
    """Remove the facts, since the run ended cleanly."""
    (data / "run" / "up.json").unlink(missing_ok=True)


def ensure_secret_key(data: Path, given: str, *, database_is_ours: bool) -> None:
    """Create ``secrets/secret-key`` unless a key is given or stored. Raises CannotStart when it was lost."""
    path = data / "secrets" / "secret-key"
    if given or path.exists():
        return
    if database_is_ours and (data / "mirbad.sqlite3").exists():
        raise CannotStart(
            f"{path} is missing, but the data was sealed with it. "
            "Restore it from a snapshot, or set MIRBAD_SECRET_KEY to its content."
        )
    write_text(path, secrets.token_urlsafe(48) + "\n")


def ensure_admin_password(data: Path, given: str | None) -> None:
    """Create ``secrets/admin-password`` unless a password is given (an empty one disables log-in) or stored."""
    path = data / "secrets" / "admin-password"
    if given is None and not path.exists():
        write_text(path, secrets.token_urlsafe(15) + "\n")
