"""The target of a request whose head could not be read: an error has the form of the API that it was meant for."""

import re

import httptools

MAX_LINE_BYTES = 8192
_TARGET = re.compile(rb"(?:^|[ \t])((?:[A-Za-z]{1,10}://[^\x00-\x20/]*)?/[^\x00-\x20\x7f]*)")
_REST = re.compile(rb"[^\x00-\x20\x7f]*")
_AUTHORITY = re.compile(rb"[A-Za-z]{1,10}://[^/]*")


def target_of(start: bytes) -> bytes:
    """Return the target in the first bytes of a request, which may be malformed; b"" if they have none."""
    line = start[:MAX_LINE_BYTES].lstrip().partition(b"\n")[0]
    found = _TARGET.search(line)
    return found[1] if found is not None else b""


def refused_target(error: Exception, read: bytes, last: bytes) -> bytes:
    """Return the target of a request that the parser refused with `error`.

    `read` is the part of it that the parser has passed on, `last` the bytes that it refused.
    """
    if not isinstance(error, httptools.HttpParserInvalidURLError):
        return read or target_of(last)
    rest = _REST.match(last) if read else None
    return read + rest[0] if rest is not None else target_of(last)


def path_of(target: bytes) -> bytes:
    """Return the path of a target, without the scheme and host of an absolute one and without its query."""
    absolute = _AUTHORITY.match(target)
    return (target[absolute.end() :] if absolute is not None else target).partition(b"?")[0]
