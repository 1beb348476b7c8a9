"""The log-in that Docker's client of this agent uses at a registry, and the command that changes it."""

import os
import pwd
import shlex
import warnings
from dataclasses import dataclass
from pathlib import Path

import docker.auth
import docker.errors

HUB = "docker.io"
_FOLDER = ".docker"


@dataclass(frozen=True)
class RegistryLogin:
    """The log-in at `registry` of the operating system's user `user`. `account` is "" without one, None when unknown.

    `command` logs in again, as that user, on the node.
    """

    registry: str
    user: str
    account: str | None
    command: str

    @property
    def is_known(self) -> bool:
        """Return whether there is a log-in."""
        return self.account != ""


def of(repository: str) -> RegistryLogin:
    """Return the log-in that applies to `repository`. Reads the client's configuration; blocking."""
    try:
        registry, _ = docker.auth.resolve_repository_name(repository)
    except docker.errors.DockerException:
        registry = repository.partition("/")[0]
    user = _user()
    return RegistryLogin(registry, user, _account(registry), _command(registry, user))


def _account(registry: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a credential helper that is not installed: there is no log-in then
            found = docker.auth.load_config().resolve_authconfig(registry)
    except (docker.errors.DockerException, OSError, ValueError, AttributeError, TypeError):
        return None  # a credential helper that fails, a file that cannot be read
    if not found:
        return ""
    return str(found.get("username") or found.get("Username") or "") or None


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"#{os.geteuid()}"


def _command(registry: str, user: str) -> str:
    folder = os.environ.get("DOCKER_CONFIG") or str(Path("~").expanduser() / _FOLDER)
    words = ["sudo", *(() if user == "root" else ("-u", user)), "docker", "--config", folder, "login"]
    return shlex.join([*words, *(() if registry == HUB else (registry,))])
