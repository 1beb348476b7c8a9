"""Health probes of engines over HTTP."""

import json
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any

import aiohttp

_BODY_LIMIT = 64 * 1024
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_REPORT_LIMIT = 512 * 1024
_REPORT_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


class ProbeResult(Enum):
    """Result of one health probe."""

    SILENT = "nothing listens"
    LOADING = "listens, but is not ready"
    READY = "ready"


def judge(status: int, body: bytes) -> ProbeResult:
    """Return the result for a response: 200 is ready, unless its JSON has a status that says "loading"."""
    return ProbeResult.READY if status == 200 and not _says_loading(body) else ProbeResult.LOADING


def _says_loading(body: bytes) -> bool:
    """Return whether `body` is JSON such as ``{"status": "loading model"}``; some engines send it with 200.

    The word alone says nothing: it may be part of a model's name or of a message.
    """
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return False
    found = [value.get("status"), value.get("state")] if isinstance(value, dict) else [value]
    loading = isinstance(value, dict) and value.get("loading") is True
    return loading or any(isinstance(text, str) and text.strip().lower().startswith("loading") for text in found)


async def _read(stream: aiohttp.StreamReader, limit: int = _BODY_LIMIT) -> bytes:
    """Return the body up to the limit: one read may return a part of it."""
    body = b""
    while len(body) < limit and (data := await stream.read(limit - len(body))):
        body += data
    return body


class Prober:
    """One HTTP client for all engines of this node."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def report(self, host: str, port: int, path: str, api_key: str) -> Any:
        """Return the JSON that a ready engine responds with, None when it cannot be had."""
        try:
            async with self._get(host, port, path, api_key, _REPORT_TIMEOUT) as response:
                return json.loads(await _read(response.content, _REPORT_LIMIT)) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, ValueError, RecursionError):
            return None

    def _get(
        self, host: str, port: int, path: str, api_key: str, timeout: aiohttp.ClientTimeout
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:
            # No connection is kept: an engine that died and one that took its port must not be confused.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        headers = {"Authorization": f"Bearer {api_key}"}
        url = f"http://{host}:{port}{path}"
        return self._session.get(url, headers=headers, allow_redirects=False, timeout=timeout)

    async def probe(self, host: str, port: int, path: str, api_key: str) -> ProbeResult:
        """Probe once; never raises for an engine that does not respond. Some engines require the key here."""
        try:
            async with self._get(host, port, path, api_key, _TIMEOUT) as response:
                return judge(response.status, await _read(response.content))
        except TimeoutError:
            return ProbeResult.LOADING
        except (aiohttp.ClientConnectionError, ConnectionError):
            # A proxy in front of a container accepts and disconnects while nothing listens inside.
            return ProbeResult.SILENT
        except (aiohttp.ClientError, OSError):
            return ProbeResult.LOADING

    async def close(self) -> None:
        """Close the client."""
        if self._session is not None:
            await self._session.close()
