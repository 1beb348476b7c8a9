"""The bytes of one file: resumed where they stopped, begun again when they changed, verified before they count."""

import asyncio
import errno
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from agent.clock import monotonic
from agent.downloads.failures import DownloadFailed, TryAgain
from agent.downloads.hub import Hub
from agent.downloads.parts import Part
from agent.wire.downloads import DownloadFile, DownloadSpec

_WRITE_BYTES = 2 * 1024 * 1024
_WRITE_SECONDS = 0.25
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_WRONG_TWICE = 2


@dataclass(frozen=True)
class Line:
    """What one fetch works with. `token` is asked anew for every request; `moved` is told bytes as they count.

    `moved` gets a negative number when bytes are thrown away; `said` gets words for a person, empty when all is well.
    """

    hub: Hub
    spec: DownloadSpec
    token: Callable[[], str | None]
    moved: Callable[[int], None]
    said: Callable[[str], None]


async def fetch(line: Line, file: DownloadFile, parts: Path, target: Path) -> None:
    """Have `file` verified at `target`. DownloadFailed when it cannot be had; its bytes so far stay for the next try.

    OSError with ENOSPC is told as ``disk_full``.
    """
    part = Part(parts, file)
    try:
        await asyncio.to_thread(part.open)
        line.moved(part.size)
        wrong = 0
        while True:
            await _fill(line, part)
            if part.is_whole:
                await asyncio.to_thread(part.finish, target)
                return
            wrong += 1
            if wrong >= _WRONG_TWICE:
                text = f"{file.path} does not hash to what the hub states, twice; nothing of it is kept."
                await asyncio.to_thread(_drop, line, part)
                raise DownloadFailed("digest_mismatch", text)
            await asyncio.to_thread(_drop, line, part)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text = (
                f"The disk of this node is full while {file.path} comes; make room there and start again, it resumes."
            )
            raise DownloadFailed("disk_full", text) from error
        raise DownloadFailed("disk_failed", f"{file.path} cannot be written on this node: {error.strerror}.") from error
    finally:
        # Cancelled here (a sibling failed, too), the close must not be lost: the file would stay open.
        await to_the_end(part.close)


async def to_the_end(change: Callable[[], None]) -> None:
    """Run `change` in a thread; one that is cancelled is waited for, since a thread cannot be called back."""
    task = asyncio.ensure_future(asyncio.to_thread(change))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise


def _drop(line: Line, part: Part) -> None:
    line.moved(-part.size)
    part.restart()
    part.note_validator(None)


async def _fill(line: Line, part: Part) -> None:
    """Bring the part to its full size."""
    tries = 0
    pauses = line.hub.patience.pauses
    while part.size < part.file.size_bytes:
        before = part.size
        try:
            await _stream(line, part)
            problem: TryAgain | None = None
        except TryAgain as error:
            problem = error
        if part.size >= part.file.size_bytes:
            break
        tries = 0 if part.size > before else tries + 1
        reason = problem.reason if problem else "the answer ended early"
        if tries >= len(pauses):
            raise DownloadFailed("hub_unreachable", f"{part.file.path} cannot be fetched: {reason}.")
        line.said(f"{part.file.path}: {reason}; trying again.")
        asked = problem.pause_seconds if problem else None
        await asyncio.sleep(asked if asked is not None else pauses[max(tries - 1, 0)])
    line.said("")


async def _stream(line: Line, part: Part) -> None:
    """One request for what is missing, its bytes written as they come."""
    headers: dict[str, str] = {}
    if part.size:
        headers["Range"] = f"bytes={part.size}-"
        if part.validator:
            headers["If-Range"] = part.validator
    async with line.hub.open(line.spec, part.file.path, line.token(), headers) as answer:
        if not _continues(answer, part):
            if part.size:
                await asyncio.to_thread(_drop, line, part)
            if answer.status != 200:
                raise TryAgain(f"the hub cannot continue at that byte ({answer.status})")
        if (encoding := answer.headers.get("Content-Encoding", "identity")) != "identity":
            raise TryAgain(f"the answer is packed as {encoding}, which was not asked for")
        await asyncio.to_thread(part.note_validator, answer.headers.get("ETag"))
        await _write(line, part, answer)


def _continues(answer: aiohttp.ClientResponse, part: Part) -> bool:
    """Whether the answer's first byte is the part's next one."""
    if answer.status == 200:
        return part.size == 0
    found = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if answer.status != 206 or found is None or int(found[1]) != part.size:
        return False
    return found[3] in ("*", str(part.file.size_bytes))


async def _write(line: Line, part: Part, answer: aiohttp.ClientResponse) -> None:
    waiting = bytearray()
    room = part.file.size_bytes - part.size
    written = monotonic()
    try:
        async for chunk in answer.content.iter_any():
            waiting += chunk
            if len(waiting) > room:
                waiting.clear()
                text = f"{part.file.path} is larger than the {part.file.size_bytes} bytes that the hub states."
                raise DownloadFailed("size_mismatch", text)
            if len(waiting) >= _WRITE_BYTES or monotonic() - written > _WRITE_SECONDS:
                room -= len(waiting)
                await _keep(line, part, waiting)
                written = monotonic()
    except TimeoutError as error:
        raise TryAgain("no more bytes came in time") from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise TryAgain(f"the connection broke ({type(error).__name__})") from error
    finally:
        # What has come is worth keeping, also when the rest did not.
        await _keep(line, part, waiting)


async def _keep(line: Line, part: Part, waiting: bytearray) -> None:
    before = part.size
    try:
        await asyncio.to_thread(part.append, bytes(waiting))
    finally:
        waiting.clear()
        line.moved(part.size - before)
