"""Real PostgreSQL and Redis for tests: started on free ports in a folder of their own, gone with the block."""

import contextlib
import os
import pwd
import random
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import until

_START_SECONDS = 30


class Missing(Exception):
    """A server is not installed here; the text names the package."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now.

    From below the range that the kernel gives to outgoing connections, so that none of those takes it in between.
    """
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _postgres_program(name: str) -> Path:
    found = shutil.which(name)
    if found:
        return Path(found).resolve()
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: int(p.parts[-3]))
    if not versions:
        raise Missing("PostgreSQL is not installed (Debian, Ubuntu: apt install postgresql)")
    return versions[-1]


class Postgres:
    """A fresh server in a folder of its own. `start` and `stop` may follow each other; its data stays until `end`."""

    def __init__(self) -> None:
        # the server refuses to run as root; Debian's package brings a user for it
        user = _unprivileged() if os.getuid() == 0 else None
        initdb, self._server = _postgres_program("initdb"), _postgres_program("postgres")
        self._folder = Path(tempfile.mkdtemp(prefix="mirbad-pg-"))
        self._who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
        self._running: subprocess.Popen[bytes] | None = None
        password = secrets.token_hex(16)
        (self._folder / "password").write_text(password)
        if user is not None:
            shutil.chown(self._folder, user.pw_uid, user.pw_gid)
            shutil.chown(self._folder / "password", user.pw_uid, user.pw_gid)
        make = [initdb, "-D", self._folder / "data", "-U", "mirbad", "--pwfile", self._folder / "password"]
        self._run([*make, "-A", "scram-sha-256", "-E", "UTF8", "--no-locale", "-N"])
        self._port = free_port()
        self.url = f"postgres://mirbad:{password}@127.0.0.1:{self._port}/postgres"

    def _run(self, command: list[str | Path]) -> None:
        subprocess.run(command, check=True, capture_output=True, cwd=self._folder, **self._who)

    def start(self) -> None:
        """Serve; returns once it does."""
        quick = ["fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200"]
        options = [item for setting in (*quick, f"unix_socket_directories={self._folder}") for item in ("-c", setting)]
        with (self._folder / "log").open("a") as log:
            self._running = subprocess.Popen(
                [self._server, "-D", self._folder / "data", "-h", "127.0.0.1", "-p", str(self._port), *options],
                stdout=log, stderr=log, cwd=self._folder, start_new_session=True, **self._who,
            )  # fmt: skip
        _wait_for_port(self._port, self._running, self._folder / "log")

    def stop(self) -> None:
        """A fast shutdown: who is connected is cut off."""
        if self._running is not None:
            self._running.send_signal(2)
            self._running.wait(timeout=30)
            self._running = None

    def end(self) -> None:
        """Stop, and delete the data."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The DATABASE_URL of a fresh server. Raises Missing."""
    server = Postgres()
    try:
        server.start()
        yield server.url
    finally:
        server.end()


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise Missing("there is no user to run PostgreSQL as (not root)")


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """The MIRBAD_REDIS_URL of a fresh Redis (or Valkey) over TCP. Raises Missing."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise Missing("Redis is not installed (Debian, Ubuntu: apt install redis-server)")
    folder = Path(tempfile.mkdtemp(prefix="mirbad-redis-"))
    port, password = free_port(), secrets.token_hex(16)
    (folder / "redis.conf").write_text(
        f'bind 127.0.0.1\nport {port}\nsave ""\nappendonly no\ndir {folder}\nrequirepass {password}\n'
    )
    try:
        with (folder / "log").open("w") as log:
            running = subprocess.Popen([program, folder / "redis.conf"], stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_for_port(port, running, folder / "log")
            yield f"redis://:{password}@127.0.0.1:{port}/0"
        finally:
            running.terminate()
            running.wait(timeout=30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_port(port: int, running: "subprocess.Popen[bytes]", log: Path) -> None:
    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    with contextlib.suppress(AssertionError):
        until(lambda: listens() or running.poll() is not None, "the server", _START_SECONDS)
    if not listens():
        raise RuntimeError(f"the server did not start:\n{log.read_text()[-2000:]}")
