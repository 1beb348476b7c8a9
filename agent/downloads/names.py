"""What a download may be called and may bring: checked before anything touches disk or network."""

import re
from urllib.parse import urlsplit

from agent.errors import AgentError
from agent.wire.downloads import DownloadSpec
from agent.wire.errors import AgentCode
from agent.wire.pickles import pickles_in, refusal_words

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def _rejected(why: str) -> AgentError:
    return AgentError(AgentCode.SPEC_REJECTED, f"Download rejected: {why}")


def check_id(download_id: str) -> None:
    """AgentError INVALID_REQUEST when it cannot be the id of a download."""
    if not _ID.fullmatch(download_id):
        raise AgentError(AgentCode.INVALID_REQUEST, "a download id is 1-128 of A-Z a-z 0-9 . _ -")


def check_folder(name: str) -> None:
    """AgentError SPEC_REJECTED when `name` cannot be a folder of the models root."""
    if not _FOLDER.fullmatch(name):
        raise _rejected("a folder is called by 1-128 of A-Z a-z 0-9 . _ - and begins with a letter or a digit.")


def check(spec: DownloadSpec) -> None:
    """AgentError SPEC_REJECTED for a name, a path, an address or a pickle that is not acceptable."""
    check_folder(spec.folder)
    paths = [file.path for file in spec.files]
    for path in paths:
        if not path.isprintable() or "\\" in path or any(p in ("", "..") or p.startswith(".") for p in path.split("/")):
            raise _rejected(f"the path {path!r} must be relative, with no part that is empty or begins with a dot.")
    if len(set(paths)) != len(paths):
        raise _rejected("a path stands twice among its files.")
    folders = {path.rsplit("/", count)[0] for path in paths for count in range(1, path.count("/") + 1)}
    if clash := sorted(folders & set(paths)):
        raise _rejected(f"{clash[0]!r} is a file and a folder at once.")
    if spec.endpoint is not None:
        check_endpoint(spec.endpoint)
    if not spec.allow_pickle and (found := pickles_in(paths)):
        raise _rejected(refusal_words(f"the set from {spec.repository}", found))


def check_endpoint(endpoint: str) -> None:
    """AgentError SPEC_REJECTED when `endpoint` is no address of a hub."""
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment
        usable = usable and parts.username is None and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise _rejected("the hub's address must be http(s)://host[:port][/path], with no user and no query in it.")
