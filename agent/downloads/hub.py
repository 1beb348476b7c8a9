"""Requests to a hub and to the hosts that it redirects to. Only the hub ever gets the token."""

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from agent.clock import now
from agent.common import requested_wait
from agent.downloads.failures import DownloadFailed, RetryableFailure
from agent.downloads.host_pauses import HostPauses
from agent.wire.downloads import DownloadSpec

DEFAULT_ENDPOINT = "https://huggingface.co"
_MAX_REDIRECTS = 8
_READ_BYTES = 1024 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TEMPORARY = frozenset({408, 425, 429})


@dataclass(frozen=True)
class RetryPolicy:
    """Timeouts for connecting and for the next bytes, and the pauses after failures without progress in between."""

    connect_seconds: float = 15.0
    read_seconds: float = 45.0
    pauses: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 30.0)


def endpoint_of(spec: DownloadSpec) -> str:
    """Return the hub's address: this machine's (``HF_ENDPOINT``), else that of the spec, else the public one."""
    return (os.environ.get("HF_ENDPOINT") or spec.endpoint or DEFAULT_ENDPOINT).rstrip("/")


def proxy_for(url: str) -> str | None:
    """Return this machine's proxy for `url` (``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY``, ``NO_PROXY``), or None."""
    parts = urlsplit(url)
    if proxy_bypass(parts.netloc):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def origin_of(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port, by which two addresses are compared."""
    parts = urlsplit(url)
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default


@dataclass
class HubClient:
    """Client of one hub. `close` it. `waiting` counts requests that wait for the pause of a host."""

    endpoint: str
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    pauses: HostPauses = field(default_factory=HostPauses)
    waiting: Counter[str] = field(default_factory=Counter)
    _session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def open(
        self, spec: DownloadSpec, path: str, token: str | None, headers: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Return the response with bytes of `path`: 200, 206 or 416, after every redirect.

        Each call starts at the hub, so that an expired signed address is replaced. DownloadFailed for a final refusal
        (gated, gone), RetryableFailure for a temporary one.
        """
        repository = quote(spec.repository)
        url = f"{self.endpoint}/{repository}/resolve/{spec.commit}/{quote(path)}"
        home, at_hub = origin_of(self.endpoint), True
        for _ in range(_MAX_REDIRECTS):
            sent = dict(headers)
            if at_hub and token:
                sent["Authorization"] = f"Bearer {token}"
            await self._turn(urlsplit(url).hostname or "")
            async with self._request(url, sent) as response:
                if response.status in _REDIRECTS and (location := response.headers.get("Location")):
                    target = urljoin(url, location)
                    if urlsplit(target).scheme not in ("http", "https") or (home[0], target[:5]) == ("https", "http:"):
                        raise DownloadFailed("hub_redirect", "The hub redirects this node to an unsafe address.")
                    # Once away from the hub, no later redirect counts as the hub again.
                    at_hub = at_hub and origin_of(target) == home
                    url = target
                    continue
                _judge(spec, path, response, at_hub=at_hub, had_token=bool(token))
                yield response
                return
        raise DownloadFailed("hub_redirect", f"The hub redirects more than {_MAX_REDIRECTS} times for {path}.")

    async def _turn(self, host: str) -> None:
        self.waiting[host] += 1
        try:
            await self.pauses.wait(host)
        finally:
            self.waiting[host] -= 1

    def paused(self) -> tuple[str, datetime] | None:
        """Return the host that requests wait for, and the end of its pause; None when none waits."""
        hosts = [host for host, count in self.waiting.items() if count > 0 and self.pauses.left(host) > 0]
        found = max(((self.pauses.end(host), host) for host in hosts), default=None)
        return None if found is None else (found[1], found[0])

    @asynccontextmanager
    async def _request(self, url: str, headers: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=self.retry_policy.connect_seconds, sock_read=self.retry_policy.read_seconds
            )
            # The client itself trusts no environment: it would read passwords from ~/.netrc.
            self._session = aiohttp.ClientSession(
                timeout=timeout,
                trust_env=False,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_READ_BYTES,
            )
        headers = {"Accept-Encoding": "identity", "User-Agent": "mirbad-agent", **headers}
        try:
            async with self._session.get(url, headers=headers, proxy=proxy_for(url), allow_redirects=False) as response:
                yield response
        except TimeoutError as error:
            raise RetryableFailure(f"{urlsplit(url).hostname} did not answer in time") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise RetryableFailure(f"the connection to {urlsplit(url).hostname} failed ({_why(error)})") from error

    async def close(self) -> None:
        """Close its connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _why(error: BaseException) -> str:
    inner = getattr(error, "os_error", None) or error
    return getattr(inner, "strerror", None) or type(inner).__name__


def _judge(spec: DownloadSpec, path: str, response: aiohttp.ClientResponse, *, at_hub: bool, had_token: bool) -> None:
    """Raise the meaning of a refusal; return for a response that carries bytes."""
    status, repository = response.status, spec.repository
    if status in (200, 206, 416):
        return
    if status in _TEMPORARY or status >= 500 or not at_hub:
        # A refusal away from the hub is an expired signed address, or a storage fault: both are temporary.
        host = response.url.host or ""
        pause = requested_wait.seconds(response.headers, status, now())
        raise RetryableFailure(f"{host} answers with HTTP {status}", pause, host)
    code = response.headers.get("X-Error-Code", "")
    if code == "GatedRepo" or (status == 403 and not code):
        if had_token:
            text = f"{repository} is gated, and the account of this token has no access. Request access on its page."
        else:
            text = f"{repository} is gated. Accept its terms on its page, then start the download again with a token."
        raise DownloadFailed("gated", text)
    if status == 401 or code == "RepoNotFound":
        if had_token and status == 401:
            raise DownloadFailed("token_refused", "The hub rejected the token. Check it, or create a new one.")
        text = f"{repository} does not exist or is private. Start the download again with a token that has access."
        raise DownloadFailed("not_found", text)
    if status == 404:
        raise DownloadFailed("not_found", f"{path} is no longer in {repository} at {spec.commit[:12]}.")
    raise DownloadFailed("hub_refused", f"The hub refused {path} of {repository}: HTTP {status} {code}".rstrip() + ".")
