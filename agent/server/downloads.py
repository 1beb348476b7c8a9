"""Routes of downloads and model folders. Bodies: docs/agent-api.md."""

import asyncio
import shutil
from http import HTTPStatus
from typing import TYPE_CHECKING

from aiohttp import web

from agent.capability import list_folders
from agent.downloads import folders, gguf, names, shape
from agent.errors import AgentError
from agent.operations import Answer
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
    TokenKept,
)
from agent.wire.errors import AgentCode
from agent.wire.shape import FolderShape

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.downloads import Downloads

DOWNLOADS: "web.AppKey[Downloads]" = web.AppKey("downloads")
CHANGED: "web.AppKey[Callable[[], None]]" = web.AppKey("folders_changed")
_MOST_GGUF = 200


def _id(request: web.Request) -> str:
    text = request.match_info["download_id"]
    names.check_id(text)
    return text


async def get_downloads(request: web.Request) -> web.StreamResponse:
    """What is at work, and what ended lately."""
    return web.json_response(DownloadList(downloads=request.app[DOWNLOADS].views()).to_wire())


async def get_download(request: web.Request) -> web.StreamResponse:
    """One download as it is now."""
    return web.json_response(request.app[DOWNLOADS].view(_id(request)).to_wire())


@mutating
async def put_download(request: web.Request, mutation: Mutation) -> Answer:
    """Bring a set; the answer does not wait for it."""
    spec = parse_message(DownloadSpec, mutation.body)
    view = await request.app[DOWNLOADS].begin(_id(request), spec)
    return Answer(HTTPStatus.ACCEPTED, view.to_wire())


@mutating
async def put_token(request: web.Request, mutation: Mutation) -> Answer:
    """Keep a hub token in memory for a download."""
    download_id = _id(request)
    sent = parse_message(TokenInput, mutation.body)
    request.app[DOWNLOADS].give_token(download_id, sent.token.get_secret_value())
    return Answer(HTTPStatus.OK, TokenKept(download_id=download_id).to_wire())


@mutating
async def post_cancel(request: web.Request, mutation: Mutation) -> Answer:
    """End a download; its bytes stay for the next one."""
    view = await request.app[DOWNLOADS].cancel(_id(request))
    return Answer(HTTPStatus.ACCEPTED, view.to_wire())


@mutating
async def delete_download(request: web.Request, mutation: Mutation) -> Answer:
    """Forget a download and its unfinished bytes. One that is not known is forgotten already."""
    download_id = _id(request)
    try:
        await request.app[DOWNLOADS].forget(download_id)
    except AgentError as error:
        if error.code is not AgentCode.NOT_FOUND:
            raise
    return Answer(HTTPStatus.OK, DownloadForgotten(download_id=download_id).to_wire())


async def _folder_list(request: web.Request) -> FolderList:
    root = request.app[CONFIG].models_root
    found = await asyncio.to_thread(list_folders, root)
    try:
        usage = await asyncio.to_thread(shutil.disk_usage, root)
    except OSError:
        return FolderList(folders=found)
    return FolderList(folders=found, free_bytes=usage.free, total_bytes=usage.total)


async def get_folders(request: web.Request) -> web.StreamResponse:
    """The model folders, read now."""
    return web.json_response((await _folder_list(request)).to_wire())


async def get_gguf(request: web.Request) -> web.StreamResponse:
    """The GGUF models in one folder."""
    name = request.match_info["folder"]
    root = request.app[CONFIG].models_root

    def look() -> GgufList:
        folder = folders.find(root, name)
        firsts = [path for path in files_of(folder) if gguf.is_first(path)][:_MOST_GGUF]
        return GgufList(folder=name, files=tuple(gguf.describe(folder, path) for path in firsts))

    return web.json_response((await asyncio.to_thread(look)).to_wire())


async def get_shape(request: web.Request) -> web.StreamResponse:
    """What the headers in one folder say, or in a part of it (``?below=``), of one GGUF (``?file=``) or the first."""
    name, below, file = request.match_info["folder"], request.query.get("below", ""), request.query.get("file", "")
    root = request.app[CONFIG].models_root

    def look() -> FolderShape:
        folder = shape.place(root, name, below)
        return shape.read(folder, files_of(folder), file)

    return web.json_response((await asyncio.to_thread(look)).to_wire())


@mutating
async def delete_folder(request: web.Request, mutation: Mutation) -> Answer:
    """Remove a model folder that no engine runs from and nothing comes into."""
    name = request.match_info["folder"]
    root = request.app[CONFIG].models_root
    await asyncio.to_thread(folders.find, root, name)
    if request.app[DOWNLOADS].is_busy(name):
        raise AgentError(AgentCode.START_CONFLICT, f"A download comes into the folder {name}; cancel it first.")
    if used := request.app[INSTANCES].using_folder(name):
        text = f"An engine of model {used[0]} runs from the folder {name}; stop it first."
        raise AgentError(AgentCode.START_CONFLICT, text, {"modelIds": list(used)})
    gone = await asyncio.to_thread(folders.remove, root, name)
    request.app[CHANGED]()
    # What counts as freed is what the node lists no more, not what was asked for.
    after = await _folder_list(request)
    still = sum(folder.total_bytes for folder in after.folders if folder.name == name)
    removed = FolderRemoved(folder=name, freed_bytes=max(gone - still, 0), remaining_bytes=still, folders=after)
    return Answer(HTTPStatus.OK, removed.to_wire())


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
