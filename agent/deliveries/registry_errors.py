"""Messages of Docker about a pull, told apart: a code, and a sentence with the next step.

Docker and containerd pass on what registries write, which agree on words only in part.
"""

import re
from dataclasses import dataclass

from agent.common.image_rules import Image, plain
from agent.deliveries.registry_login import RegistryLogin
from agent.wire.images import PullFailure

_LIMITED = re.compile(
    r"too ?many ?requests|\b429\b|(?:pull|request) rate limit|rate limit(?:ed)? (?:exceeded|reached)|"
    r"rate exceeded|quota exceeded|throttl"
)
_UNREACHABLE = re.compile(
    r"no such host|connection refused|i/o timeout|no route to host|network is unreachable|name resolution|"
    r"server misbehaving|awaiting headers|deadline exceeded|waiting for connection|tls handshake timeout|proxyconnect|"
    r"connection reset|connection timed out|host is down|broken pipe|bad gateway|service unavailable|gateway time-?out|"
    r"internal server error|status(?: code)?:? 5\d\d|unexpected eof|: eof\b"
)
_UNTRUSTED = re.compile(
    r"x509|\btls: |http response to https client|certificate (?:has expired|is not|signed by|verif)|\bssl\b"
)
_PLATFORM = re.compile(r"no matching manifest|no match for platform|does not match the specified platform")
_NO_LOGIN = re.compile(
    r"authentication (?:is )?required|no basic auth credentials|incorrect username|invalid username|bad username|"
    r"unauthenticated|\b401\b|token (?:has|is) expired|reauthenticate|credentials store|must be authenticated|"
    r"login required|(?:^|: )unauthorized\s*$"  # the last are Docker's own words for a 401 without a body
)
_FORBIDDEN = re.compile(r"\b403\b|forbidden|permission\b.{0,200}?\bdenied|payment required|\b402\b")
_EITHER = re.compile(
    r"unauthori[sz]ed|not authori[sz]ed|denied|insufficient.scope|authorization failed|failed to authorize|"
    r"may require|no pull access"
)
_ABSENT = re.compile(r"manifest.unknown|name.unknown|not found|not known|does not exist|no such image|\b404\b")
_ADDRESS = re.compile(r"https?://[^\s\"]+", re.IGNORECASE)


@dataclass(frozen=True)
class PullProblem:
    """The code of a failed pull, and the clause that says why and what to do."""

    code: PullFailure
    hint: str


def explain(text: str, image: Image, login: RegistryLogin) -> PullProblem:
    """Return the problem that Docker's message `text` about `image` describes."""
    low = _without_names(text, image).lower()
    if "no space left" in low:
        return PullProblem(PullFailure.PULL_FAILED, "the disk of this node is full. Free space for Docker's images.")
    if _PLATFORM.search(low):
        return PullProblem(PullFailure.PULL_FAILED, "the image does not support this machine's processor.")
    code = _code(low, login)
    return PullProblem(code, _HINTS[code](login))


def _code(low: str, login: RegistryLogin) -> PullFailure:
    for pattern, code in _IN_ORDER:
        if pattern.search(low):
            return code
    if _EITHER.search(low):
        # Registries hide what an account may not see, so the message is the same; what to do is not.
        return PullFailure.REGISTRY_FORBIDDEN if login.is_known else PullFailure.REGISTRY_UNAUTHORIZED
    return PullFailure.IMAGE_NOT_FOUND if _ABSENT.search(low) else PullFailure.PULL_FAILED


# A token that cannot be fetched is told with the reason, which decides; so log-ins come after the network.
_IN_ORDER = (
    (_LIMITED, PullFailure.REGISTRY_RATE_LIMITED),
    (_UNREACHABLE, PullFailure.REGISTRY_UNREACHABLE),
    (_UNTRUSTED, PullFailure.REGISTRY_UNTRUSTED),
    (_NO_LOGIN, PullFailure.REGISTRY_UNAUTHORIZED),
    (_FORBIDDEN, PullFailure.REGISTRY_FORBIDDEN),
)


def _without_names(text: str, image: Image) -> str:
    """Return `text` without addresses and the names of the image: a repository may be called ``forbidden``."""
    short = plain(image.repository)
    names = {image.reference, image.repository, short, f"library/{short}", short.partition("/")[2]}
    text = _ADDRESS.sub("", text)
    for name in sorted((name for name in names if "/" in name), key=len, reverse=True):
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "", text, flags=re.IGNORECASE)
    return text


def _who(login: RegistryLogin) -> str:
    if login.account:
        return f"the account {login.account!r}, the log-in of this node's user {login.user}"
    return f"the log-in of this node's user {login.user}"


def _unauthorized(login: RegistryLogin) -> str:
    if not login.is_known:
        return (
            f"the registry {login.registry} wants a log-in, and this node's user {login.user} has none for it "
            f"(or the repository does not exist). Run on the node: {login.command}."
        )
    return f"the registry {login.registry} refused {_who(login)}. Log in again on the node: {login.command}."


def _forbidden(login: RegistryLogin) -> str:
    if not login.is_known:
        return (
            f"the registry {login.registry} forbids this repository to those without a log-in. "
            f"Log in with an account that may read it, on the node: {login.command}."
        )
    return (
        f"{_who(login)}, may not read this repository at {login.registry}, or there is no such repository. "
        f"Give it access there, or log in with another account on the node: {login.command}."
    )


def _limited(login: RegistryLogin) -> str:
    counted = _who(login) if login.is_known else f"this node's address, since its user {login.user} has no log-in"
    return (
        f"the registry {login.registry} limits pulls for now; it counts {counted}. "
        f"Wait and try again, or log in with an account that may pull more: {login.command}."
    )


def _untrusted(login: RegistryLogin) -> str:
    return (
        f"Docker on this node does not trust the connection to the registry {login.registry}. Put its CA into "
        f"/etc/docker/certs.d/{login.registry}/ca.crt; for a registry without TLS, list it in insecure-registries of "
        "/etc/docker/daemon.json and restart Docker."
    )


def _unreachable(login: RegistryLogin) -> str:
    return (
        f"the registry {login.registry} does not answer this node. Check its name, the network, and Docker's proxy; "
        f"curl -v https://{login.registry}/v2/ on the node shows more."
    )


def _absent(_: RegistryLogin) -> str:
    return "the registry has no such image. Check the name and the digest."


def _other(_: RegistryLogin) -> str:
    return "the registry cannot be used from this node."


_HINTS = {
    PullFailure.REGISTRY_UNAUTHORIZED: _unauthorized,
    PullFailure.REGISTRY_FORBIDDEN: _forbidden,
    PullFailure.REGISTRY_RATE_LIMITED: _limited,
    PullFailure.REGISTRY_UNTRUSTED: _untrusted,
    PullFailure.REGISTRY_UNREACHABLE: _unreachable,
    PullFailure.IMAGE_NOT_FOUND: _absent,
    PullFailure.PULL_FAILED: _other,
}
