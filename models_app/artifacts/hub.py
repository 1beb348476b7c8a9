"""The files of a repository on the hub, with sizes and digests, pinned to a commit. Blocking network calls.

Each call uses the given token or none: a token that other programs keep on the master's disk is never used.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.common import requested_wait
from agent.wire.downloads import DownloadFile
from mirbad.kernel import clock
from mirbad.kernel.errors import InvalidRequest, MirbadError
from models_app.artifacts.errors import Gated, HubUnreachable, RepositoryNotFound, TokenRefused

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

TIMEOUT_SECONDS = 15.0
_UNAUTHORIZED = 401
_MOST_WAIT_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit."""

    name: str
    commit: str
    gated: bool
    license: str
    files: tuple[DownloadFile, ...]


def endpoint() -> str | None:
    """Return the hub of the master's environment (``HF_ENDPOINT``); None is the public one."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or None


def resolve(name: str, revision: str = "", token: str | None = None, *, timeout: float = TIMEOUT_SECONDS) -> Repository:
    """Resolve the repository `name` at `revision` (a branch, a tag or a commit; empty is the main branch).

    Raises RepositoryNotFound, Gated, TokenRefused, HubUnreachable, InvalidRequest.
    """
    # The hub's client takes a moment to load; most processes never need it.
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.errors import HFValidationError

    api = HfApi(endpoint=endpoint(), token=token or False)
    try:
        info = api.model_info(name, revision=revision or None, files_metadata=True, timeout=timeout)
        if info.gated and info.siblings:
            # The list of files is public even where the files are not: first check whether this token may read them.
            url = hf_hub_url(name, info.siblings[0].rfilename, revision=info.sha, endpoint=endpoint())
            api.get_hf_file_metadata(url=url, token=token or False, timeout=timeout)
        return _read(name, info)
    except HFValidationError as error:
        raise InvalidRequest(f"{name!r} is not a repository name; use owner/name.") from error
    except MirbadError:
        raise
    except Exception as error:
        known = _as_error(error, name, revision, had_token=bool(token))
        if known is None:
            raise
        raise known from error


def content(found: Repository, path: str, limit: int, *, timeout: float = TIMEOUT_SECONDS) -> bytes:
    """Return the first `limit` bytes of a file, which must be public. Raises as `resolve`."""
    import httpx2
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(found.name, path, revision=found.commit, endpoint=endpoint())
    data = bytearray()
    try:
        with httpx2.stream("GET", url, follow_redirects=True, timeout=timeout) as response:
            if not response.is_success:
                raise _refused(response.status_code, response.headers, f"{path} of {found.name}")
            for block in response.iter_bytes():
                data += block
                if len(data) >= limit:
                    break
    except (httpx2.HTTPError, OSError) as error:
        raise _as_error(error, found.name, found.commit, had_token=False) or error from error
    return bytes(data[:limit])


def _read(name: str, info: "ModelInfo") -> Repository:
    if not info.sha:
        raise HubUnreachable(f"Hugging Face reported no commit of {name}; try again.")
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
        raise HubUnreachable(f"Hugging Face reported no size or digest of {sibling.rfilename}; try again.")
    return DownloadFile(path=sibling.rfilename, size_bytes=size, digest=digest)


def _refused(status: int, headers: Mapping[str, str], subject: str) -> HubUnreachable:
    """Return the error for a temporary refusal, with the wait that the hub asks for."""
    asked = requested_wait.seconds(headers, status, clock.now())
    if asked is None:
        return HubUnreachable(f"Hugging Face answered {status} for {subject}; try again later.", retry_after_seconds=10)
    wait = min(math.ceil(min(asked, _MOST_WAIT_SECONDS)), _MOST_WAIT_SECONDS)
    text = f"Hugging Face limits requests (HTTP {status} for {subject}); try again in {wait} s."
    return HubUnreachable(text, retry_after_seconds=wait)


def _as_error(error: Exception, name: str, revision: str, *, had_token: bool) -> MirbadError | None:
    """Return the error of the hub's client as one of ours; None for an unexpected one."""
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
                f"{name} is gated and the token's account has no access; request access on the repository's page."
            )
        return Gated(f"{name} is gated: accept its terms on its page, then enter a token of that account.")
    if isinstance(error, RevisionNotFoundError):
        return RepositoryNotFound(f"{name} has no revision {revision!r}.")
    if isinstance(error, RepositoryNotFoundError):
        if had_token and "nvalid credentials" in str(error):
            return TokenRefused("Hugging Face rejected the token; check it, or create a new one.")
        hint = "the token cannot read it" if had_token else "it is private (enter a token that can read it)"
        return RepositoryNotFound(f"Hugging Face has no repository {name}, or {hint}.")
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        status = error.response.status_code
        if status == _UNAUTHORIZED:
            return TokenRefused("Hugging Face rejected the token; check it, or create a new one.")
        return _refused(status, error.response.headers, name)
    if isinstance(error, (HTTPError, OSError)):
        where = endpoint() or "huggingface.co"
        text = f"The master cannot reach Hugging Face ({where}, {type(error).__name__}); check network and proxy."
        return HubUnreachable(text, retry_after_seconds=10)
    if isinstance(error, (ValueError, KeyError, TypeError)):
        return HubUnreachable(f"The server at {endpoint() or 'huggingface.co'} is not a Hugging Face hub.")
    return None
