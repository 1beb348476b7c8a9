"""Fetch of one file: resumed after an interruption, restarted after a change, verified before it counts."""

import asyncio
import errno
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import aiohttp

from agent.clock import monotonic, now
from agent.downloads.failures import DownloadFailed, RetryableFailure
from agent.downloads.hub import HubClient
from agent.downloads.partial_file import PartialFile
from agent.wire.downloads import DownloadFile, DownloadSpec

_WRITE_BYTES = 2 * 1024 * 1024
_WRITE_SECONDS = 0.25
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_MAX_MISMATCHES = 2

MOST_PAUSE_SECONDS = 3600.0
MOST_WAIT_SECONDS = 6 * 3600.0
"""The longest pause that a server may ask for, and all of them together without a byte in between."""


@dataclass(frozen=True)
class FetchContext:
    """The environment of one fetch. `token` is called for every request; `on_bytes` gets the bytes that arrive.

    `on_bytes` gets a negative number when bytes are discarded; `on_status` gets a text for display, empty when all is
    well.
    """

    hub: HubClient
    spec: DownloadSpec
    token: Callable[[], str | None]
    on_bytes: Callable[[int], None]
    on_status: Callable[[str], None]


async def fetch(context: FetchContext, file: DownloadFile, parts: Path, target: Path) -> None:
    """Fetch and verify `file` at `target`. DownloadFailed when it fails; its bytes so far stay for the next try.

    OSError with ENOSPC is reported as ``disk_full``.
    """
    part = PartialFile(parts, file)
    try:
        await asyncio.to_thread(part.open)
        context.on_bytes(part.size)
        mismatches = 0
        while True:
            await _fill(context, part)
            if part.is_whole:
                await asyncio.to_thread(part.finish, target)
                return
            mismatches += 1
            if mismatches >= _MAX_MISMATCHES:
                text = f"{file.path} failed verification twice: its digest differs from the hub's. It was discarded."
                await asyncio.to_thread(_drop, context, part)
                raise DownloadFailed("digest_mismatch", text)
            await asyncio.to_thread(_drop, context, part)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text = f"The disk of this node is full. Free space and start the download again; {file.path} resumes."
            raise DownloadFailed("disk_full", text) from error
        raise DownloadFailed("disk_failed", f"{file.path} cannot be written on this node: {error.strerror}.") from error
    finally:
        # Cancelled here (a sibling failed, too), the close must still run: the file would stay open.
        await run_to_completion(part.close)


async def run_to_completion(change: Callable[[], None]) -> None:
    """Run `change` in a thread and, when cancelled, wait for it: a thread cannot be cancelled."""
    task = asyncio.ensure_future(asyncio.to_thread(change))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


def _drop(context: FetchContext, part: PartialFile) -> None:
    context.on_bytes(-part.size)
    part.restart()
    part.note_validator(None)


async def _fill(context: FetchContext, part: PartialFile) -> None:
    """Fetch the part to its full size. A pause that a server asks for uses up no try."""
    tries = asked = 0
    waited = 0.0
    pauses = context.hub.retry_policy.pauses
    while part.size < part.file.size_bytes:
        before = part.size
        try:
            await _stream(context, part)
            problem = RetryableFailure("the response ended early")
        except RetryableFailure as error:
            problem = error
        if part.size >= part.file.size_bytes:
            break
        if part.size > before:
            tries, asked, waited = 0, 0, 0.0
        if problem.pause_seconds is not None:
            # A server that asks for a moment again and again is called less and less often.
            pause = max(problem.pause_seconds, pauses[min(asked, len(pauses) - 1)] if pauses else 0.0)
            asked, waited = asked + 1, waited + pause
            _require_patience(part.file.path, problem, pause, waited)
            context.on_status("")
            context.hub.pauses.ask(problem.host, pause)
            continue
        tries = tries if part.size > before else tries + 1
        if tries >= len(pauses):
            raise DownloadFailed("hub_unreachable", f"Cannot download {part.file.path}: {problem.reason}.")
        context.on_status(f"{part.file.path}: {problem.reason}; retrying.")
        await asyncio.sleep(pauses[max(tries - 1, 0)])
    context.on_status("")


def _require_patience(path: str, problem: RetryableFailure, pause: float, waited: float) -> None:
    """Raise DownloadFailed when a server asks for a longer pause than a download waits."""
    if pause > MOST_PAUSE_SECONDS:
        asks = f"asks to wait until {_moment(pause)}, which is longer than a download waits"
    elif waited > MOST_WAIT_SECONDS:
        asks = f"has asked to wait for {MOST_WAIT_SECONDS / 3600:.0f} hours in all and sent nothing meanwhile"
    else:
        return
    text = f"{problem.host} limits requests: it {asks}. Start the download again later; {path} resumes."
    raise DownloadFailed("hub_rate_limited", text)


def _moment(seconds: float) -> str:
    try:
        return f"{now() + timedelta(seconds=seconds):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError):
        return "a date beyond the calendar"


async def _stream(context: FetchContext, part: PartialFile) -> None:
    """Request the missing bytes once and write them as they arrive."""
    headers: dict[str, str] = {}
    if part.size:
        headers["Range"] = f"bytes={part.size}-"
        if part.validator:
            headers["If-Range"] = part.validator
    async with context.hub.open(context.spec, part.file.path, context.token(), headers) as response:
        if not _continues(response, part):
            if part.size:
                await asyncio.to_thread(_drop, context, part)
            if response.status != 200:
                raise RetryableFailure(f"the hub cannot resume the file (HTTP {response.status})")
        if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
            raise RetryableFailure(f"the response has an unrequested encoding ({encoding})")
        await asyncio.to_thread(part.note_validator, response.headers.get("ETag"))
        await _write(context, part, response)


def _continues(response: aiohttp.ClientResponse, part: PartialFile) -> bool:
    """Return whether the first byte of the response is the next one of the part."""
    if response.status == 200:
        return part.size == 0
    found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status != 206 or found is None or int(found[1]) != part.size:
        return False
    return found[3] in ("*", str(part.file.size_bytes))


async def _write(context: FetchContext, part: PartialFile, response: aiohttp.ClientResponse) -> None:
    buffer = bytearray()
    remaining = part.file.size_bytes - part.size
    written_at = monotonic()
    try:
        async for chunk in response.content.iter_any():
            buffer += chunk
            if len(buffer) > remaining:
                buffer.clear()
                text = f"{part.file.path} is larger than the {part.file.size_bytes} bytes that the hub reports."
                raise DownloadFailed("size_mismatch", text)
            if len(buffer) >= _WRITE_BYTES or monotonic() - written_at > _WRITE_SECONDS:
                remaining -= len(buffer)
                await _keep(context, part, buffer)
                written_at = monotonic()
    except TimeoutError as error:
        raise RetryableFailure("no data arrived in time") from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise RetryableFailure(f"the connection broke ({type(error).__name__})") from error
    finally:
        # The bytes that arrived are kept, also when the rest did not.
        await _keep(context, part, buffer)


async def _keep(context: FetchContext, part: PartialFile, buffer: bytearray) -> None:
    before = part.size
    try:
        await asyncio.to_thread(part.append, bytes(buffer))
    finally:
        buffer.clear()
        context.on_bytes(part.size - before)
