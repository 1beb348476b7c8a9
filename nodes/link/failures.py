"""Causes of failed calls to agents, as sentences."""

import errno
import os
import ssl
from typing import Any

import aiohttp

from agent.common.tls_pins import NOT_YET_VALID
from nodes.errors import NodeOffline, NodeTurnedAway
from nodes.link.transport import Endpoint


def offline(target: Endpoint, error: BaseException) -> NodeOffline:
    """Return the error for a call that `error` broke: NodeTurnedAway when the node itself closed the connection."""
    cause = _cause(error)
    hung_up = _is_cut(cause) or (isinstance(cause, ssl.SSLError) and "ALERT" in _reason(cause))
    kind = NodeTurnedAway if hung_up else NodeOffline
    return kind(f"Node {target.node_id} is unreachable at {target.host} port {target.port}: {_why(error)}.")


def _cause(error: BaseException) -> Any:
    found = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    # What breaks an open connection is passed on as an error of the system, whose number is not one.
    return found.__cause__ if isinstance(found.__cause__, ssl.SSLError) else found


def _why(error: BaseException) -> str:
    """Return the cause of a failed connection as text."""
    inner = _cause(error)
    if isinstance(inner, ssl.SSLError):
        if (guess := _of_clocks(inner)) is not None:
            return guess
        text = inner.verify_message if isinstance(inner, ssl.SSLCertVerificationError) else str(inner.args[-1])
        return f"no trusted connection ({text})"
    if isinstance(inner, TimeoutError):
        return "timed out"
    if _is_cut(inner):
        return "the agent closed the connection (it may not know this master's key)"
    if isinstance(inner, OSError) and inner.errno:
        return os.strerror(inner.errno)
    return str(inner) or type(inner).__name__


def _is_cut(cause: BaseException) -> bool:
    """Return whether the other side ended the connection; aiohttp wraps some of these in an OSError of its own."""
    if isinstance(cause, aiohttp.ServerDisconnectedError | ConnectionResetError | BrokenPipeError):
        return True
    return isinstance(cause, OSError) and cause.errno in (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED)


def _reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's name of the fault; errors that Python makes by itself have none."""
    return (getattr(error, "reason", None) or "").upper()


def _of_clocks(error: ssl.SSLError) -> str | None:
    """Return the cause when it is a clock that is wrong, by the alert of the node or the check of its certificate."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == NOT_YET_VALID:
            return "its certificate is not valid yet by this master's clock, which is probably behind"
        return None
    reason = _reason(error)
    # An agent closes the connection of a key that it does not know. It sends these for times alone.
    if reason.endswith("ALERT_BAD_CERTIFICATE"):
        return "this master's certificate is not valid yet by the node's clock, which is probably behind: correct it"
    if reason.endswith("ALERT_CERTIFICATE_EXPIRED"):
        return "this master's certificate has expired by the node's clock, which is probably ahead: correct it"
    return None
