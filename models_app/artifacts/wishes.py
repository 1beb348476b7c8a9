"""A set that somebody wants, and what it is once the hub has been asked."""

import re
from dataclasses import dataclass

from agent.wire.downloads import DownloadSpec
from mirbad.kernel.errors import InvalidRequest
from models_app.artifacts import choose, hub

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be had. `files` are names or patterns (none: the usual ones); an empty folder is named by the set."""

    repository: str
    revision: str = ""
    files: tuple[str, ...] = ()
    folder: str = ""
    allow_pickle: bool = False


def spec_of(wish: Wish, token: str | None = None) -> DownloadSpec:
    """`wish` pinned to a commit, with sizes and digests. Asks the hub.

    Raises RepositoryNotFound, Gated, TokenRefused, HubUnreachable, InvalidRequest, ChoiceRequired, PickleRefused.
    """
    folder = wish.folder or choose.folder_for(wish.repository)
    if not _FOLDER.fullmatch(folder):
        text = "A folder is called by 1-128 letters, digits and . _ - and begins with a letter or a digit."
        raise InvalidRequest(text, problems=[{"code": "folder_invalid", "message": text, "field": "folder"}])
    found = hub.resolve(wish.repository, wish.revision, token)
    choice = choose.choose(found.name, found.files, wish.files, allow_pickle=wish.allow_pickle)
    if not choice.files:
        raise InvalidRequest(f"{found.name} holds no file that a model is made of.")
    return DownloadSpec(
        folder=folder,
        repository=found.name,
        commit=found.commit,
        files=choice.files,
        endpoint=hub.endpoint(),
        allow_pickle=wish.allow_pickle,
    )
