"""What a hub knows of a repository: its files with sizes and digests, pinned to a commit. Blocking network calls.

Each call is made with the token that it is given or with none at all: a token that lies on the master's disk for other
programs is never used.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.wire.downloads import DownloadFile
from mirbad.kernel.errors import InvalidRequest, MirbadError
from models_app.artifacts.errors import Gated, HubUnreachable, RepositoryNotFound, TokenRefused

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

TIMEOUT_SECONDS = 15.0
_UNAUTHORIZED = 401


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit."""

    name: str
    commit: str
    gated: bool
    license: str
    files: tuple[DownloadFile, ...]


def endpoint() -> str | None:
    """The hub that the master's environment names (``HF_ENDPOINT``); None is the public one."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def resolve(name: str, revision: str = "", token: str | None = None, *, timeout: float = TIMEOUT_SECONDS) -> Repository:
    """The repository `name` at `revision` (a branch, a tag, a commit; empty is the main one).

    Raises RepositoryNotFound, Gated, TokenRefused, HubUnreachable, InvalidRequest.
    """
    # It brings a client of its own and takes a moment to load; most processes never need it.
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.errors import HFValidationError

    api = HfApi(endpoint=endpoint(), token=token or False)
    try:
        info = api.model_info(name, revision=revision or None, files_metadata=True, timeout=timeout)
        if info.gated and info.siblings:
            # The list of files is open, the files are not: whether this token may have them is asked first.
            url = hf_hub_url(name, info.siblings[0].rfilename, revision=info.sha, endpoint=endpoint())
            api.get_hf_file_metadata(url=url, token=token or False, timeout=timeout)
        return _read(name, info)
    except HFValidationError as error:
        raise InvalidRequest(f"{name!r} is not the name of a repository; give owner/name.") from error
    except MirbadError:
        raise
    except Exception as error:
        told = _told(error, name, revision, had_token=bool(token))
        if told is None:
            raise
        raise told from error


def content(found: Repository, path: str, limit: int, *, timeout: float = TIMEOUT_SECONDS) -> bytes:
    """The first `limit` bytes of a file of the repository, which must be open to everyone. Raises as `resolve`."""
    import httpx2
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(found.name, path, revision=found.commit, endpoint=endpoint())
    data = bytearray()
    try:
        with httpx2.stream("GET", url, follow_redirects=True, timeout=timeout) as response:
            if not response.is_success:
                text = f"The hub answers {response.status_code} for {path} of {found.name}; try again in a while."
                raise HubUnreachable(text, retry_after_seconds=10)
            for block in response.iter_bytes():
                data += block
                if len(data) >= limit:
                    break
    except (httpx2.HTTPError, OSError) as error:
        raise _told(error, found.name, found.commit, had_token=False) or error from error
    return bytes(data[:limit])


def _read(name: str, info: "ModelInfo") -> Repository:
    if not info.sha:
        raise HubUnreachable(f"The hub names no commit of {name}; try again.")
    card = info.card_data
    stated = getattr(card, "license", None) if card is not None else None
    files = tuple(_file(sibling) for sibling in info.siblings or ())
    return Repository(name, info.sha, bool(info.gated), stated if isinstance(stated, str) else "", files)


def _file(sibling: "RepoSibling") -> DownloadFile:
    if sibling.lfs is not None:
        size, digest = sibling.lfs.size, f"sha256:{sibling.lfs.sha256}"
    elif sibling.size is not None and sibling.blob_id:
        size, digest = sibling.size, f"git-sha1:{sibling.blob_id}"
    else:
        raise HubUnreachable(f"The hub states no size or digest of {sibling.rfilename}; try again.")
    return DownloadFile(path=sibling.rfilename, size_bytes=size, digest=digest)


def _told(error: Exception, name: str, revision: str, *, had_token: bool) -> MirbadError | None:
    """What went wrong, as one of ours; None for what nobody foresaw."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        if had_token:
            return Gated(
                f"{name} is gated and this token's account has no access; ask for it on the repository's page."
            )
        return Gated(f"{name} is gated: accept its terms on its page, then give a token of that account.")
    if isinstance(error, RevisionNotFoundError):
        return RepositoryNotFound(f"{name} has no revision {revision!r}.")
    if isinstance(error, RepositoryNotFoundError):
        if had_token and "nvalid credentials" in str(error):
            return TokenRefused("The hub does not accept the token; check it, or make a new one.")
        hint = "the token may not read it" if had_token else "it is private; give a token that may read it"
        return RepositoryNotFound(f"The hub has no repository {name}, or {hint}.")
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        status = error.response.status_code
        if status == _UNAUTHORIZED:
            return TokenRefused("The hub does not accept the token; check it, or make a new one.")
        return HubUnreachable(f"The hub answers {status} for {name}; try again in a while.", retry_after_seconds=10)
    if isinstance(error, (HTTPError, OSError)):
        where = endpoint() or "huggingface.co"
        text = f"The hub ({where}) cannot be reached from the master ({type(error).__name__}); check network and proxy."
        return HubUnreachable(text, retry_after_seconds=10)
    if isinstance(error, (ValueError, KeyError, TypeError)):
        return HubUnreachable(
            f"What answers for the hub ({endpoint() or 'huggingface.co'}) does not speak as one does."
        )
    return None
