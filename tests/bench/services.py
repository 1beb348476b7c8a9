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
import time
from collections.abc import Iterator
from pathlib import Path

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


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """The DATABASE_URL of a fresh server. Raises Missing."""
    initdb, server = _postgres_program("initdb"), _postgres_program("postgres")
    # the server refuses to run as root; Debian's package brings a user for it
    user = _unprivileged() if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="mirbad-pg-"))
    password = secrets.token_hex(16)
    try:
        (folder / "password").write_text(password)
        if user is not None:
            shutil.chown(folder, user.pw_uid, user.pw_gid)
            shutil.chown(folder / "password", user.pw_uid, user.pw_gid)
        who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}
        make = [initdb, "-D", folder / "data", "-U", "mirbad", "--pwfile", folder / "password", "-A", "scram-sha-256"]
        subprocess.run([*make, "-E", "UTF8", "--no-locale", "-N"], check=True, capture_output=True, cwd=folder, **who)
        port = free_port()
        quick = ["fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200"]
        options = [item for setting in (*quick, f"unix_socket_directories={folder}") for item in ("-c", setting)]
        with (folder / "log").open("w") as log:
            running = subprocess.Popen(
                [server, "-D", folder / "data", "-h", "127.0.0.1", "-p", str(port), *options],
                stdout=log, stderr=log, cwd=folder, start_new_session=True, **who,
            )  # fmt: skip
        try:
            _wait_for_port(port, running, folder / "log")
            yield f"postgres://mirbad:{password}@127.0.0.1:{port}/postgres"
        finally:
            running.send_signal(2)  # a fast shutdown
            running.wait(timeout=30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if running.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError(f"the server did not start:\n{log.read_text()[-2000:]}")
