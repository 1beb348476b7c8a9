"""Routes of downloads and model folders. Bodies: docs/agent-api.md."""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from aiohttp import web

from agent import model_folders, models_root, patience, unreadable
from agent.common.formats import gguf_names
from agent.downloads import folders, gguf, headers, names, shape
from agent.errors import AgentError
from agent.operations import RecordedResponse
from agent.runtimes.source import files_of
from agent.server.body import parse_message
from agent.server.guard import Handler, Mutation, mutating
from agent.server.keys import CONFIG, INSTANCES
from agent.wire.downloads import (
    DownloadForgotten,
    DownloadList,
    DownloadSpec,
    FolderList,
    FolderRemoved,
    GgufList,
    TokenInput,
    TokenStored,
)
from agent.wire.errors import AgentCode
from agent.wire.shape import FolderShape

if TYPE_CHECKING:
    from agent.downloads import DownloadManager

DOWNLOADS: "web.AppKey[DownloadManager]" = web.AppKey("downloads")
CHANGED: "web.AppKey[Callable[[], None]]" = web.AppKey("folders_changed")
_MOST_GGUF = 200
_LOOK_SECONDS = 5.0

T = TypeVar("T")


def _id(request: web.Request) -> str:
    text = request.match_info["download_id"]
    names.check_id(text)
    return text


async def get_downloads(request: web.Request) -> web.StreamResponse:
    """Return the downloads in progress, and those that ended recently."""
    return web.json_response(DownloadList(downloads=request.app[DOWNLOADS].views()).to_wire())


async def get_download(request: web.Request) -> web.StreamResponse:
    """Return the current state of one download."""
    return web.json_response(request.app[DOWNLOADS].view(_id(request)).to_wire())


@mutating
async def put_download(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Start a download; the response does not wait for it."""
    spec = parse_message(DownloadSpec, mutation.body)
    view = await request.app[DOWNLOADS].begin(_id(request), spec)
    return RecordedResponse(HTTPStatus.ACCEPTED, view.to_wire())


@mutating
async def put_token(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Keep a token of the hub in memory for one download."""
    download_id = _id(request)
    sent = parse_message(TokenInput, mutation.body)
    request.app[DOWNLOADS].give_token(download_id, sent.token.get_secret_value())
    return RecordedResponse(HTTPStatus.OK, TokenStored(download_id=download_id).to_wire())


@mutating
async def post_cancel(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Cancel a download; its bytes stay for the next one."""
    view = await request.app[DOWNLOADS].cancel(_id(request))
    return RecordedResponse(HTTPStatus.ACCEPTED, view.to_wire())


@mutating
async def delete_download(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Delete the record and the unfinished bytes of a download. An unknown one counts as deleted."""
    download_id = _id(request)
    try:
        await request.app[DOWNLOADS].forget(download_id)
    except AgentError as error:
        if error.code is not AgentCode.NOT_FOUND:
            raise
    return RecordedResponse(HTTPStatus.OK, DownloadForgotten(download_id=download_id).to_wire())


async def _folder_list(request: web.Request) -> FolderList:
    config = request.app[CONFIG]
    root = config.models_root
    found = await asyncio.to_thread(model_folders.of_node, config)
    if (problem := found.problem) is not None:
        # The next status says so, too.
        request.app[CHANGED]()
        return FolderList(folders=found.folders, problem=problem, problem_code=problem.code)
    try:
        usage = await patience.answer(_LOOK_SECONDS, f"disk of {root}", lambda: shutil.disk_usage(root))
    except OSError:
        return FolderList(folders=found.folders)
    return FolderList(folders=found.folders, free_bytes=usage.free, total_bytes=usage.total)


async def _look(request: web.Request, look: Callable[[Path, str], T]) -> T:
    """Return the result of `look` at the models root and the request's folder.

    AgentError SOURCE_MISSING with the reason if the file system fails, MODELS_ROOT_CHANGED if it is another.
    """
    config, name = request.app[CONFIG], request.match_info["folder"]

    def run() -> T:
        models_root.require(config, name)
        return look(config.models_root, name)

    path = config.models_root / name
    try:
        return await patience.answer(_LOOK_SECONDS, f"headers in {path}", run)
    except OSError as error:
        if isinstance(error, TimeoutError) and headers.are_read_below(path):
            text = f"The long headers of the files in {name} are still being read. Try again in a moment."
            raise AgentError(AgentCode.NOT_READY, text) from error
        raise AgentError(AgentCode.SOURCE_MISSING, unreadable.why(path, error)) from error


async def get_folders(request: web.Request) -> web.StreamResponse:
    """Return the model folders, read now."""
    return web.json_response((await _folder_list(request)).to_wire())


async def get_gguf(request: web.Request) -> web.StreamResponse:
    """Return the GGUF models in one folder."""

    def look(root: Path, name: str) -> GgufList:
        folder = folders.find(root, name)
        firsts = [path for path in files_of(folder) if gguf_names.is_first(path.name)][:_MOST_GGUF]
        return GgufList(folder=name, files=tuple(gguf.describe(folder, path) for path in firsts))

    return web.json_response((await _look(request, look)).to_wire())


async def get_shape(request: web.Request) -> web.StreamResponse:
    """Return the headers in one folder, or in a part of it (``?below=``), of one GGUF (``?file=``) or of the first."""
    below, file = request.query.get("below", ""), request.query.get("file", "")

    def look(root: Path, name: str) -> FolderShape:
        folder = shape.find_folder(root, name, below)
        return shape.read(folder, files_of(folder), file)

    return web.json_response((await _look(request, look)).to_wire())


@mutating
async def delete_folder(request: web.Request, mutation: Mutation) -> RecordedResponse:
    """Remove a model folder that no engine runs from and no download fills."""
    name = request.match_info["folder"]
    root = request.app[CONFIG].models_root
    await _look(request, folders.find)
    if request.app[DOWNLOADS].is_busy(name):
        raise AgentError(AgentCode.START_CONFLICT, f"A download fills the folder {name}. Cancel it first.")
    if used := request.app[INSTANCES].using_folder(name):
        text = f"Model {used[0]} runs from the folder {name}. Stop it first."
        raise AgentError(AgentCode.START_CONFLICT, text, {"modelIds": list(used)})
    gone = await asyncio.to_thread(folders.remove, root, name)
    with suppress(OSError):
        await asyncio.to_thread(models_root.note, request.app[CONFIG], name, removed=True)
    request.app[CHANGED]()
    # Bytes count as freed when the node no longer lists them, not when their deletion was requested.
    after = await _folder_list(request)
    still = sum(folder.total_bytes for folder in after.folders if folder.name == name)
    removed = FolderRemoved(folder=name, freed_bytes=max(gone - still, 0), remaining_bytes=still, folders=after)
    return RecordedResponse(HTTPStatus.OK, removed.to_wire())


ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/downloads", get_downloads),
    ("PUT", "/downloads/{download_id}", put_download),
    ("GET", "/downloads/{download_id}", get_download),
    ("DELETE", "/downloads/{download_id}", delete_download),
    ("PUT", "/downloads/{download_id}/token", put_token),
    ("POST", "/downloads/{download_id}/cancel", post_cancel),
    ("GET", "/folders", get_folders),
    ("GET", "/folders/{folder}/gguf", get_gguf),
    ("GET", "/folders/{folder}/shape", get_shape),
    ("DELETE", "/folders/{folder}", delete_folder),
)
