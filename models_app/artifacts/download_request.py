"""A set of files to download, and its exact content once the hub has been queried."""

import re
from dataclasses import dataclass

from agent.wire.downloads import DownloadSpec
from mirbad.kernel.errors import InvalidRequest
from models_app.artifacts import hub, selection

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class DownloadRequest:
    """A download. `files` are names or patterns (none: the default selection); an empty folder gets a default name.

    `projector` is the choice of a model whose GGUF is the first of `files`: a file, "none", or empty for the one that
    belongs to it. None downloads exactly `files`.
    """

    repository: str
    revision: str = ""
    files: tuple[str, ...] = ()
    folder: str = ""
    allow_pickle: bool = False
    projector: str | None = None


def spec_of(request: DownloadRequest, token: str | None = None) -> DownloadSpec:
    """Pin `request` to a commit, with sizes and digests. Calls the hub.

    Raises RepositoryNotFound, Gated, TokenRefused, HubUnreachable, InvalidRequest, ChoiceRequired, PickleRefused.
    """
    folder = request.folder or selection.folder_for(request.repository)
    if not _FOLDER.fullmatch(folder):
        text = "A folder name has 1-128 letters, digits or . _ - and starts with a letter or digit."
        raise InvalidRequest(text, problems=[{"code": "folder_invalid", "message": text, "field": "folder"}])
    found = hub.resolve(request.repository, request.revision, token)
    files = list(request.files)
    if files and request.projector is not None:
        names = [file.path for file in found.files]
        files += filter(None, [selection.projector_of(files[0], request.projector, names)])
    selected = selection.select(found.name, found.files, files, allow_pickle=request.allow_pickle)
    if not selected.files:
        raise InvalidRequest(f"{found.name} holds no model files.")
    return DownloadSpec(
        folder=folder,
        repository=found.name,
        commit=found.commit,
        files=selected.files,
        endpoint=hub.endpoint(),
        allow_pickle=request.allow_pickle,
    )
