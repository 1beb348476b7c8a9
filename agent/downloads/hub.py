"""Requests to a hub and to the hosts that it sends us on to. The token is shown to the hub and to nobody else."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from agent.downloads.failures import DownloadFailed, TryAgain
from agent.wire.downloads import DownloadSpec

DEFAULT_ENDPOINT = "https://huggingface.co"
_HOPS = 8
_READ_BYTES = 1024 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_PAUSE_SECONDS = 60.0


@dataclass(frozen=True)
class Patience:
    """How long to wait: for a connection, for the next bytes, and after each failure without progress in between."""

    connect_seconds: float = 15.0
    read_seconds: float = 45.0
    pauses: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 30.0)


def endpoint_of(spec: DownloadSpec) -> str:
    """The hub's address: this machine's own (``HF_ENDPOINT``), else what the order says, else the public one."""
    return (os.environ.get("HF_ENDPOINT") or spec.endpoint or DEFAULT_ENDPOINT).rstrip("/")


def proxy_for(url: str) -> str | None:
    """The proxy of this machine for `url` (``HTTPS_PROXY``, ``HTTP_PROXY``, ``ALL_PROXY``, ``NO_PROXY``), or None."""
    parts = urlsplit(url)
    if proxy_bypass(parts.netloc):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def origin_of(url: str) -> tuple[str, str, int | None]:
    """What makes two addresses the same host."""
    parts = urlsplit(url)
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, (parts.hostname or "").lower(), parts.port or default


@dataclass
class Hub:
    """One hub as this machine reaches it. `close` it."""

    endpoint: str
    patience: Patience = field(default_factory=Patience)
    _session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def open(
        self, spec: DownloadSpec, path: str, token: str | None, headers: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer that carries bytes of `path`: 200, 206 or 416, after every redirect.

        Each call asks the hub anew, so that a signed address that has expired is replaced. DownloadFailed for what
        stands (gated, gone), TryAgain for what may pass.
        """
        repository = quote(spec.repository)
        url = f"{self.endpoint}/{repository}/resolve/{spec.commit}/{quote(path)}"
        home, at_hub = origin_of(self.endpoint), True
        for _ in range(_HOPS):
            sent = dict(headers)
            if at_hub and token:
                sent["Authorization"] = f"Bearer {token}"
            async with self._request(url, sent) as answer:
                if answer.status in _REDIRECTS and (location := answer.headers.get("Location")):
                    target = urljoin(url, location)
                    if urlsplit(target).scheme not in ("http", "https") or (home[0], target[:5]) == ("https", "http:"):
                        raise DownloadFailed("hub_redirect", "The hub sends this node to an address that is not safe.")
                    # Once away from the hub, no later hop is believed to be home again.
                    at_hub = at_hub and origin_of(target) == home
                    url = target
                    continue
                _judge(spec, path, answer, at_hub=at_hub, had_token=bool(token))
                yield answer
                return
        raise DownloadFailed("hub_redirect", f"The hub redirects more than {_HOPS} times for {path}.")

    @asynccontextmanager
    async def _request(self, url: str, headers: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=self.patience.connect_seconds, sock_read=self.patience.read_seconds
            )
            # No environment is trusted by the client itself: it would read passwords from ~/.netrc.
            self._session = aiohttp.ClientSession(
                timeout=timeout,
                trust_env=False,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_READ_BYTES,
            )
        headers = {"Accept-Encoding": "identity", "User-Agent": "mirbad-agent", **headers}
        try:
            async with self._session.get(url, headers=headers, proxy=proxy_for(url), allow_redirects=False) as answer:
                yield answer
        except TimeoutError as error:
            raise TryAgain(f"{urlsplit(url).hostname} does not answer in time") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise TryAgain(f"the connection to {urlsplit(url).hostname} failed ({_why(error)})") from error

    async def close(self) -> None:
        """Close its connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _why(error: BaseException) -> str:
    inner = getattr(error, "os_error", None) or error
    return getattr(inner, "strerror", None) or type(inner).__name__


def _pause(answer: aiohttp.ClientResponse) -> float | None:
    text = answer.headers.get("Retry-After", "")
    return min(float(text), _MOST_PAUSE_SECONDS) if text.isascii() and text.isdigit() else None


def _judge(spec: DownloadSpec, path: str, answer: aiohttp.ClientResponse, *, at_hub: bool, had_token: bool) -> None:
    """Raise what a refusal means; return for an answer that carries bytes."""
    status, repository = answer.status, spec.repository
    if status in (200, 206, 416):
        return
    if status == 429 or status >= 500 or not at_hub:
        # A refusal away from the hub is a signed address that has run out, or its store in trouble: both pass.
        host = answer.url.host
        raise TryAgain(f"{host} answers {status}", _pause(answer))
    code = answer.headers.get("X-Error-Code", "")
    if code == "GatedRepo" or (status == 403 and not code):
        if had_token:
            text = f"{repository} is gated and this token's account has no access; ask for access on its page."
        else:
            text = f"{repository} is gated: accept its terms on its page, then start the download again with a token."
        raise DownloadFailed("gated", text)
    if status == 401 or code == "RepoNotFound":
        if had_token and status == 401:
            raise DownloadFailed("token_refused", "The hub does not accept the token; check it, or make a new one.")
        text = f"{repository} does not exist or is private; start the download again with a token that may read it."
        raise DownloadFailed("not_found", text)
    if status == 404:
        raise DownloadFailed("not_found", f"{path} is not in {repository} at {spec.commit[:12]} any more.")
    raise DownloadFailed("hub_refused", f"The hub refuses {path} of {repository} with {status} {code}".rstrip() + ".")
