"""Rules for a download's id, folder, paths and endpoint, checked before disk or network is used."""

import re
from urllib.parse import urlsplit

from agent.common.formats.pickles import pickles_in, refusal_words
from agent.errors import AgentError
from agent.wire.downloads import DownloadSpec
from agent.wire.errors import AgentCode

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def _rejected(why: str) -> AgentError:
    return AgentError(AgentCode.SPEC_REJECTED, f"Download rejected: {why}")


def check_id(download_id: str) -> None:
    """Raise AgentError INVALID_REQUEST when `download_id` is not a valid id."""
    if not _ID.fullmatch(download_id):
        raise AgentError(AgentCode.INVALID_REQUEST, "a download id has 1-128 characters of A-Z a-z 0-9 . _ -")


def check_folder(name: str) -> None:
    """Raise AgentError SPEC_REJECTED when `name` is not a valid folder of the models root."""
    if not _FOLDER.fullmatch(name):
        raise _rejected("a folder name has 1-128 characters of A-Z a-z 0-9 . _ - and starts with a letter or digit.")


def check(spec: DownloadSpec) -> None:
    """Raise AgentError SPEC_REJECTED for an unacceptable name, path, address or pickle."""
    check_folder(spec.folder)
    paths = [file.path for file in spec.files]
    for path in paths:
        if not path.isprintable() or "\\" in path or any(p in ("", "..") or p.startswith(".") for p in path.split("/")):
            raise _rejected(f"the path {path!r} must be relative, without empty parts or parts that start with a dot.")
    if len(set(paths)) != len(paths):
        raise _rejected("a path is listed twice.")
    folders = {path.rsplit("/", count)[0] for path in paths for count in range(1, path.count("/") + 1)}
    if clash := sorted(folders & set(paths)):
        raise _rejected(f"{clash[0]!r} is both a file and a folder.")
    if spec.endpoint is not None:
        check_endpoint(spec.endpoint)
    if not spec.allow_pickle and (found := pickles_in(paths)):
        raise _rejected(refusal_words(f"the selection from {spec.repository}", found))


def check_endpoint(endpoint: str) -> None:
    """Raise AgentError SPEC_REJECTED when `endpoint` is not a valid address of a hub."""
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
        usable = usable and parts.username is None and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise _rejected("the hub's address must be http(s)://host[:port][/path], without user and query.")
