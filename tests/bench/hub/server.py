"""The hub's two origins in one thread: ``hub`` speaks of repositories, ``store`` gives bytes for a while."""

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from tests.waiting import pause_async

LARGE_BYTES = 64 * 1024
"""Files from this size on lie in the store; smaller ones are answered by the hub itself."""

_BLOCK = 64 * 1024


def git_sha1(data: bytes) -> str:
    """Return the SHA-1 by which Git names a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass
class Repository:
    """One repository at one commit. `gated` ones want a token of `allowed`."""

    name: str
    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    allowed: set[str] = field(default_factory=set)
    license: str = "apache-2.0"

    @property
    def sha(self) -> str:
        """The commit: another content is another commit."""
        parts = "".join(f"{path}:{git_sha1(data)}" for path, data in sorted(self.files.items()))
        return hashlib.sha1(parts.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class Seen:
    """A request as it came."""

    origin: str
    path: str
    token: str | None
    range: str | None
    if_range: str | None


@dataclass
class Faults:
    """Faults of the hub; a test changes them while it runs. Counts are used up, and so are refusals by origin.

    Until `limited_until` (monotonic) each request for a file is refused with 429 and the headers of `limit`, which gets
    the seconds that are left.
    """

    cut_after: int | None = None
    cuts: int = 0
    ignore_ranges: bool = False
    expired: int = 0
    errors: int = 0
    corrupt: int = 0
    bytes_per_second: float | None = None
    silent: bool = False
    refusals: dict[str, list[tuple[int, dict[str, str]]]] = field(default_factory=dict)
    limited_until: float = 0.0
    limit: Callable[[float], dict[str, str]] = lambda left: {"Retry-After": f"{left:.3f}"}


class Hub:
    """``with Hub() as hub:``; `endpoint` is its address. Tokens are the names of accounts."""

    def __init__(self, *, signed_seconds: float = 60.0) -> None:
        self.repositories: dict[str, Repository] = {}
        self.accounts: set[str] = set()
        self.faults = Faults()
        self.seen: list[Seen] = []
        self.etag_salt = ""
        self.signed_seconds = signed_seconds
        self._key = secrets.token_bytes(16)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hub", daemon=True)
        self._runners: list[web.AppRunner] = []
        self.ports: dict[str, int] = {}

    @property
    def endpoint(self) -> str:
        """The hub's address, for ``HF_ENDPOINT``."""
        return f"http://127.0.0.1:{self.ports['hub']}"

    def add(self, repository: Repository) -> Repository:
        """Have `repository`, or this content of it."""
        self.repositories[repository.name] = repository
        self.accounts |= repository.allowed
        return repository

    def of(self, origin: str) -> list[Seen]:
        """The requests that came to one origin."""
        return [seen for seen in self.seen if seen.origin == origin]

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        hub, store = web.Application(), web.Application()
        hub.router.add_get("/api/whoami-v2", self._whoami)
        hub.router.add_get("/api/models/{owner}/{name}", self._model)
        hub.router.add_get("/api/models/{owner}/{name}/revision/{revision}", self._model)
        hub.router.add_get("/api/models/{owner}/{name}/tree/{revision}", self._tree)
        hub.router.add_route("*", "/{owner}/{name}/resolve/{revision}/{path:.+}", self._resolve)
        store.router.add_get("/blob/{digest}", self._blob)
        for origin, app in (("hub", hub), ("store", store)):
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._runners.append(runner)
            self.ports[origin] = runner.addresses[0][1]

    async def _stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        # Transports say good-bye in the loop's next turns.
        await pause_async(0.05)

    def _note(self, origin: str, request: web.Request) -> str | None:
        sent = request.headers.get("Authorization", "")
        token = sent.removeprefix("Bearer ") or None
        heads = request.headers
        self.seen.append(Seen(origin, request.path, token, heads.get("Range"), heads.get("If-Range")))
        return token

    def _find(self, request: web.Request) -> Repository:
        token = self._note("hub", request)
        if token is not None and token not in self.accounts:
            headers = {"X-Error-Message": "Invalid credentials in Authorization header"}
            raise web.HTTPUnauthorized(headers=headers)
        name = f"{request.match_info['owner']}/{request.match_info['name']}"
        found = self.repositories.get(name)
        if found is None or (found.private and token not in found.allowed):
            error = web.HTTPNotFound if token else web.HTTPUnauthorized
            raise error(headers={"X-Error-Code": "RepoNotFound"})
        if request.match_info.get("revision", "main") not in ("main", found.sha):
            raise web.HTTPNotFound(headers={"X-Error-Code": "RevisionNotFound"})
        return found

    @staticmethod
    def _require_access(found: Repository, token: str | None) -> None:
        if found.gated and token not in found.allowed:
            error = web.HTTPForbidden if token else web.HTTPUnauthorized
            raise error(headers={"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to it is restricted."})

    async def _whoami(self, request: web.Request) -> web.Response:
        token = self._note("hub", request)
        if token not in self.accounts:
            raise web.HTTPUnauthorized
        return web.json_response({"type": "user", "name": token, "auth": {"type": "access_token"}})

    async def _model(self, request: web.Request) -> web.Response:
        if self.faults.silent:
            await asyncio.Event().wait()
        found = self._find(request)
        if (refused := self._refused("api")) is not None:
            return refused
        blobs = request.query.get("blobs", "").lower() in ("1", "true")
        return web.json_response(
            {
                "_id": found.sha[:24],
                "id": found.name,
                "modelId": found.name,
                "sha": found.sha,
                "private": found.private,
                "gated": "auto" if found.gated else False,
                "tags": [f"license:{found.license}"],
                "cardData": {"license": found.license},
                "siblings": [self._sibling(path, data, blobs=blobs) for path, data in sorted(found.files.items())],
            }
        )

    @staticmethod
    def _sibling(path: str, data: bytes, *, blobs: bool) -> dict[str, Any]:
        entry: dict[str, Any] = {"rfilename": path}
        if blobs:
            entry |= {"size": len(data), "blobId": git_sha1(data)}
            if len(data) >= LARGE_BYTES:
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        return entry

    async def _tree(self, request: web.Request) -> web.Response:
        found = self._find(request)
        entries: list[dict[str, Any]] = []
        for path, data in sorted(found.files.items()):
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
            if len(data) >= LARGE_BYTES:
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            entries.append(entry)
        return web.json_response(entries)

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        found = self._find(request)
        if self.faults.silent:
            await asyncio.Event().wait()
        self._require_access(found, self.seen[-1].token)
        if (refused := self._refused("hub")) is not None:
            return refused
        data = found.files.get(request.match_info["path"])
        if data is None:
            raise web.HTTPNotFound(headers={"X-Error-Code": "EntryNotFound"})
        if self.faults.errors > 0:
            self.faults.errors -= 1
            raise web.HTTPServiceUnavailable
        headers = {"X-Repo-Commit": found.sha, "ETag": f'"{git_sha1(data)}"'}
        if len(data) < LARGE_BYTES:
            return web.Response(body=data, headers=headers, content_type="application/octet-stream")
        digest = hashlib.sha256(data).hexdigest()
        until = f"{time.time() + self.signed_seconds:.3f}"
        address = f"http://localhost:{self.ports['store']}/blob/{digest}?until={until}&sign={self._sign(digest, until)}"
        headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data)), "Location": address}
        return web.Response(status=302, headers=headers)

    def _refused(self, origin: str) -> web.Response | None:
        if waiting := self.faults.refusals.get(origin):
            status, headers = waiting.pop(0)
            return web.Response(status=status, headers=headers)
        left = self.faults.limited_until - time.monotonic()
        return web.Response(status=429, headers=self.faults.limit(left)) if origin == "hub" and left > 0 else None

    def _sign(self, digest: str, until: str) -> str:
        return hmac.new(self._key, f"{digest}|{until}".encode(), "sha256").hexdigest()

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        self._note("store", request)
        if (refused := self._refused("store")) is not None:
            return refused
        digest, until = request.match_info["digest"], request.query["until"]
        expired = float(until) < time.time() or self.faults.expired > 0
        self.faults.expired = max(self.faults.expired - 1, 0)
        if expired or not hmac.compare_digest(request.query["sign"], self._sign(digest, until)):
            raise web.HTTPForbidden(text="Request has expired")
        data = next(d for r in self.repositories.values() for d in r.files.values() if _sha256(d) == digest)
        if self.faults.corrupt > 0:
            self.faults.corrupt -= 1
            data = bytes([data[0] ^ 1]) + data[1:]
        etag = f'"{digest[:32]}{self.etag_salt}"'
        start = self._start_of(request, etag, len(data))
        headers = {"ETag": etag, "Accept-Ranges": "bytes", "Content-Length": str(len(data) - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        response = web.StreamResponse(status=206 if start else 200, headers=headers)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):  # whoever asked may leave
            await self._send(request, response, data[start:])
        return response

    def _start_of(self, request: web.Request, etag: str, size: int) -> int:
        asked = request.headers.get("Range")
        if asked is None or self.faults.ignore_ranges or request.headers.get("If-Range", etag) != etag:
            return 0
        start = int(asked.removeprefix("bytes=").rstrip("-"))
        if start >= size:
            raise web.HTTPRequestRangeNotSatisfiable(headers={"Content-Range": f"bytes */{size}"})
        return start

    async def _send(self, request: web.Request, response: web.StreamResponse, data: bytes) -> None:
        sent, faults = 0, self.faults
        cut = faults.cut_after if faults.cuts > 0 else None
        if cut is not None:
            faults.cuts -= 1
        while sent < len(data):
            step = data[sent : sent + _BLOCK] if cut is None else data[sent : min(sent + _BLOCK, cut)]
            await response.write(step)
            sent += len(step)
            if cut is not None and sent >= cut and request.transport is not None:
                # What was written leaves first: the line breaks in the middle of the file, not before it.
                await pause_async(0.05)
                request.transport.abort()
                return
            if faults.bytes_per_second:
                await pause_async(len(step) / faults.bytes_per_second)
        await response.write_eof()


_digests: dict[int, tuple[bytes, str]] = {}


def _sha256(data: bytes) -> str:
    known = _digests.get(id(data))
    if known is None or known[0] is not data:
        known = _digests[id(data)] = (data, hashlib.sha256(data).hexdigest())
    return known[1]
