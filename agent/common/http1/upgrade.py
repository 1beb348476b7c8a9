"""Requests that offer another protocol, read as the plain requests that they also are."""

from collections.abc import Iterable

Header = tuple[bytes, bytes]

_OF_THE_OFFER = frozenset({b"upgrade", b"http2-settings"})


def plain_head(method: bytes, target: bytes, version: str, headers: Iterable[Header]) -> bytes:
    """Return the head of the same request without the offer: a parser that sees the offer skips the body."""
    lines = [b"%b %b HTTP/%b\r\n" % (method, target, version.encode())]
    for name, value in headers:
        kept = value
        if name.lower() == b"connection":
            tokens = [token.strip() for token in value.split(b",")]
            kept = b", ".join(token for token in tokens if token.lower() not in _OF_THE_OFFER)
        if kept and name.lower() not in _OF_THE_OFFER:
            lines.append(b"%b: %b\r\n" % (name, kept))
    return b"".join([*lines, b"\r\n"])
