"""The command that joins a machine: its text, the URLs inside it, and the agent bundles that it installs."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.http.request import validate_host

from mirbad.api import origins
from mirbad.bundles import archive
from mirbad.bundles.command import install_command
from mirbad.kernel.conf import settings
from nodes.models import Node
from nodes.pki import authority

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class JoinCommand:
    """Everything that joins one machine. `ca_hash` may hold two hashes, comma-separated, during a rotation.

    `commands` prompt for the token; it is in none of them.
    """

    node_id: str
    token: str = field(repr=False)
    ca_hash: str
    enroll_url: str
    expires_at: datetime
    purpose: str
    commands: Mapping[str, str]
    agent_download: Mapping[str, Any] | None = None

    @property
    def linux_with_token(self) -> str:
        """The command with the token inside, for a shell without a prompt.

        The token is then in the shell's history, yet on no process's command line.
        """
        return f"(export MIRBAD_JOIN_TOKEN={shlex.quote(self.token)}; {self.commands['linux'].removeprefix('(')}"


def build(
    node_id: str, token: str, purpose: str, expires_at: datetime, *, rekeyed: Node | None, browser: str = ""
) -> JoinCommand:
    """Return the command for `token`. `rekeyed` is the node that gets a new key, None for a join.

    `browser` is the address of this master in the person's browser; machines are sent to the same one.
    """
    ca_hash, enroll_url = ",".join(authority.ca_hashes()), enroll_url_for(browser)
    bundle_url = bundle_url_for(enroll_url, browser)
    return JoinCommand(
        node_id=node_id,
        token=token,
        ca_hash=ca_hash,
        enroll_url=enroll_url,
        expires_at=expires_at,
        purpose=purpose,
        commands={"linux": _linux_command(node_id, rekeyed, ca_hash, enroll_url, bundle_url)},
        agent_download=_agent_download(bundle_url),
    )


def own_enroll_url() -> str:
    """Return the URL of the enroll listener for this machine's own agent."""
    return f"https://{origins.bracketed(settings().local_host)}:{settings().enroll_port}"


def enroll_url_for(browser: str) -> str:
    """Return the URL to enroll at: the configured one, else with the browser's host if listed, else the first one."""
    configured = settings()
    if configured.enroll_url:
        return configured.enroll_url.rstrip("/")
    return f"https://{_listed_host(browser)}:{configured.enroll_port}"


def bundle_url_for(enroll_url: str, browser: str = "") -> str:
    """Return the base URL of agent downloads: the configured one, else the browser's address of this master.

    Without a listed one, or when a browser on this machine has none that others can use while an enroll URL is
    configured, it is this master under the enroll URL's host.
    """
    configured = settings()
    if configured.agent_bundle_url:
        return configured.agent_bundle_url.rstrip("/")
    origin = origins.parse(browser)
    host = origins.bracketed(urlsplit(enroll_url).hostname or "127.0.0.1")
    if origin is not None and _is_listed(origin.host):
        here = origins.bracketed(origin.host)
        if here not in _LOOPBACK or host in _LOOPBACK:
            return str(origin)
    return f"http://{host}:{configured.port}"


def _listed_host(browser: str) -> str:
    origin = origins.parse(browser if "://" in browser else f"http://{_bare(browser)}")
    if origin is not None and _is_listed(origin.host):
        return origins.bracketed(origin.host)
    names = (name for name in settings().hosts if not name.startswith((".", "*")))
    return next(names, origins.bracketed(settings().local_host))


def _bare(host: str) -> str:
    return f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host


def _is_listed(host: str) -> bool:
    return validate_host(origins.bracketed(host), list(settings().names))


def _linux_command(node_id: str, rekeyed: Node | None, ca_hash: str, enroll_url: str, bundle_url: str) -> str:
    if rekeyed is not None and rekeyed.is_bootstrap:
        return _own_command(rekeyed, ca_hash)
    options = ["--enroll-url", enroll_url, "--ca-hash", ca_hash, "--node-id", node_id]
    if rekeyed is not None:
        options += ["--rekey", "--node-uid", str(rekeyed.uid)]
    return install_command(archive.bundles()[0], bundle_url, options)


def _own_command(node: Node, ca_hash: str) -> str:
    """Return the rekey command of this machine's own agent, which is part of the installation and needs no download."""
    configured = settings()
    words = [sys.executable, "-m", "agent", "join", "--rekey", "--node-uid", str(node.uid), "--node-id", node.pk]
    words += ["--enroll-url", own_enroll_url(), "--ca-hash", ca_hash]
    words += ["--address", "127.0.0.1", "--port", str(node.port)]
    words += ["--config", str(configured.data / "agent" / "agent.json")]
    return f"(cd {shlex.quote(str(_ROOT))} && {shlex.join(words)})"


def _agent_download(base_url: str) -> dict[str, Any]:
    rows = [
        {"rid": bundle.rid, "url": f"{base_url}{bundle.path}", "sha256": bundle.sha256, "version": bundle.version}
        for bundle in archive.bundles()
    ]
    return {"bundles": rows}
