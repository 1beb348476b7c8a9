"""The data folder: made, private, writable, and held by one `make up` at a time."""

import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from mirbad.up.errors import CannotStart

_OWN_PARTS = frozenset(
    {"agent", "audit", "logs", "lost+found", "pki", "recovery", "run", "secrets", "static", "takeover"}
)
SOCKET_PATH_LIMIT = 107
"""Bytes of a Unix socket's path, the ending zero not counted."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a running `make up` tells other commands, in ``MIRBAD_DATA/run/up.json``."""

    pid: int
    started_at: str
    runtime_dir: str
    redis_url: str
    web_url: str


def write_private(path: Path, text: str) -> None:
    """Replace `path` by `text`, mode 0600, whole or not at all, flushed to disk."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def prepare(data: Path) -> None:
    """Make the data folder and its private parts. Raises CannotStart with what to change."""
    if re.search(r"\s[;#]", str(data)) or not str(data).isprintable():
        # both begin a comment in supervisord's configuration
        raise CannotStart(f"MIRBAD_DATA={str(data)!r} holds a ; or # after a space, or a control character: rename it.")
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_foreign(data)
        if stat.S_IMODE(data.stat().st_mode) & 0o077:
            data.chmod(0o700)
        for part in ("secrets", "run", "agent", "agent/models"):
            (data / part).mkdir(mode=0o700, exist_ok=True)
        for part in ("logs", "audit", "static"):
            (data / part).mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=data) as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
    except OSError as error:
        raise CannotStart(
            f"The data folder {data} cannot be written ({error.strerror}). "
            "Give this user write access to it, or set MIRBAD_DATA to another folder."
        ) from error


def _refuse_foreign(data: Path) -> None:
    """A folder that holds something else is left as it is: closing it to others could stop a whole machine."""
    names = {entry.name for entry in data.iterdir()}
    others = sorted(names - _OWN_PARTS)
    if others and "secrets" not in names:
        raise CannotStart(
            f"The data folder {data} holds other things ({', '.join(others[:3])}{', …' if others[3:] else ''}). "
            "Set MIRBAD_DATA to a new or empty folder, or to one that Mirbad made."
        )


class Lock:
    """One `make up` per data folder. The kernel drops it with the process, so a crash leaves nothing to clean."""

    def __init__(self, data: Path) -> None:
        self._path = data / "run" / "up.lock"
        self._data = data
        self._descriptor = -1

    def take(self) -> None:
        """Hold the folder until this process ends. Raises CannotStart naming the process that holds it."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = self._path.read_text().strip() or "unknown"
            os.close(self._descriptor)
            raise CannotStart(
                f"Mirbad already runs on {self._data} (process {holder}), or is just ending there. "
                "Stop it with Ctrl-C in its terminal and wait for its end, or set MIRBAD_DATA to another folder."
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())


def is_running(data: Path) -> bool:
    """Whether some `make up` holds the folder now."""
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
    """A short private folder for sockets, the same for the same data folder. Raises CannotStart.

    Socket paths end at 108 bytes, so it cannot lie inside an arbitrary data folder.
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
    """What the last `make up` wrote of itself; None when it ended cleanly or never ran."""
    try:
        return RunFacts(**json.loads((data / "run" / "up.json").read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def write_facts(data: Path, facts: RunFacts) -> None:
    """Tell other commands where this run is found."""
    write_private(data / "run" / "up.json", json.dumps(asdict(facts)))


def forget_facts(data: Path) -> None:
    """The run ended cleanly."""
    (data / "run" / "up.json").unlink(missing_ok=True)


def ensure_secret_key(data: Path, given: str, *, database_is_ours: bool) -> None:
    """Make ``secrets/secret-key`` unless a key is given or stored. Raises CannotStart when it was lost."""
    path = data / "secrets" / "secret-key"
    if given or path.exists():
        return
    if database_is_ours and (data / "mirbad.sqlite3").exists():
        raise CannotStart(
            f"{path} is missing, but the data was sealed with it. "
            "Put it back from a snapshot, or set MIRBAD_SECRET_KEY to its content."
        )
    write_private(path, secrets.token_urlsafe(48) + "\n")


def ensure_admin_password(data: Path, given: str | None) -> None:
    """Make ``secrets/admin-password`` unless a password is given (an empty one disables log-in) or stored."""
    path = data / "secrets" / "admin-password"
    if given is None and not path.exists():
        write_private(path, secrets.token_urlsafe(15) + "\n")
