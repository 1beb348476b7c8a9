"""Asking an engine whether it is ready."""

from enum import Enum

import aiohttp

_BODY_LIMIT = 64 * 1024
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)


class Beat(Enum):
    """What came of a look at an engine's health."""

    SILENT = "nothing listens yet"
    LOADING = "listens, and is not ready"
    READY = "ready"


def judge(status: int, body: bytes) -> Beat:
    """A 200 is ready, unless its body says that it is loading: some engines and proxies answer so."""
    return Beat.READY if status == 200 and b"loading" not in body.lower() else Beat.LOADING


class Prober:
    """One client for all engines of this node."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, host: str, port: int, path: str, api_key: str) -> Beat:
        """One look; never raises for an engine that does not answer. The key is sent: with some engines health asks."""
        if self._session is None:
            # no connection is kept: an engine that died and one that took its port must not be mixed up
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), timeout=_TIMEOUT)
        headers = {"Authorization": f"Bearer {api_key}"}
        try:
            async with self._session.get(
                f"http://{host}:{port}{path}", headers=headers, allow_redirects=False
            ) as answer:
                return judge(answer.status, await answer.content.read(_BODY_LIMIT))
        except TimeoutError:
            return Beat.LOADING
        except (aiohttp.ClientConnectionError, ConnectionError):
            # a proxy in front of a container accepts and hangs up while nothing listens inside
            return Beat.SILENT
        except (aiohttp.ClientError, OSError):
            return Beat.LOADING

    async def close(self) -> None:
        """Close the client."""
        if self._session is not None:
            await self._session.close()
