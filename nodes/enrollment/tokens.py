"""One-time tokens ``id.secret``. The secret is shown once; only its digest is kept."""

import hashlib
import hmac
import re
import secrets
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.db import transaction
from django.db.models import F, Q

from audit import log as audit_log
from mirbad.bundles import archive
from mirbad.bundles.command import install_command
from mirbad.kernel import clock
from mirbad.kernel.actor import CONFIG, Actor
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound
from mirbad.kernel.ids import is_node_id
from mirbad.live import hints
from nodes import fencing
from nodes.errors import NodeRevoked
from nodes.models import JoinToken, Node, NodePin, TokenAttempt
from nodes.pki import authority
from nodes.states import APPROVED, PENDING, REVOKED

SHORTEST = timedelta(minutes=10)
LONGEST = timedelta(hours=24)
WRONG_LIMIT = 10
_ATTEMPTS_KEPT = timedelta(hours=24)
_DISPLAY_NAME_LENGTH = 100
_ROOT = Path(__file__).resolve().parents[2]

_SHAPE = re.compile(r"([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")
_DUMMY = hashlib.sha256(secrets.token_bytes(32)).hexdigest()


@dataclass(frozen=True, slots=True)
class JoinCommand:
    """What a person needs to join one machine. `ca_hash` may hold two hashes, comma-separated, during a rotation.

    `commands` ask for the token at a prompt; it is in none of them.
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
        """The command with the token inside, for a shell without a prompt: in its history, yet on no command line."""
        return f"(export MIRBAD_JOIN_TOKEN={shlex.quote(self.token)}; {self.commands['linux'].removeprefix('(')}"


def create(
    node_id: str,
    *,
    actor: Actor,
    purpose: str = JoinToken.JOIN,
    display_name: str = "",
    ttl: timedelta | None = None,
    request_host: str = "",
) -> JoinCommand:
    """Make a token for one node and one purpose, and prune old ones.

    `request_host` is the host of the request that asks, used in the enroll URL when it is a listed one. Raises
    InvalidRequest, NotFound, Conflict, NodeRevoked, MasterFenced.
    """
    lifetime = settings().default_join_token_lifetime if ttl is None else ttl
    _check_shape(node_id, display_name, lifetime)
    if purpose not in {JoinToken.JOIN, JoinToken.REKEY, JoinToken.BOOTSTRAP}:
        raise InvalidRequest("A token is for a join or a rekey.")
    if purpose == JoinToken.BOOTSTRAP and (actor != CONFIG or node_id != settings().bootstrap_node):
        raise InvalidRequest("Only the master itself makes a token for its own machine.")
    token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    now = clock.now()
    authority.ensure()
    with transaction.atomic():
        fencing.require_unfenced()
        node = Node.objects.filter(pk=node_id).first()
        _check_node(node_id, node, purpose)
        _prune(now)
        row = JoinToken.objects.create(
            id=token_id,
            digest=digest_of(secret),
            purpose=purpose,
            node_id_text=node_id,
            display_name=display_name.strip(),
            expires_at=now + lifetime,
            created_by=actor.name,
        )
        minutes = int(lifetime.total_seconds() // 60)
        audit_log.record("node.join-token", actor, node_id=node_id, target=purpose, detail=f"valid for {minutes} min")
        transaction.on_commit(lambda: hints.changed("nodes", node_id))
    ca_hash, enroll_url = ",".join(authority.ca_hashes()), enroll_url_for(request_host)
    return JoinCommand(
        node_id=node_id,
        token=f"{token_id}.{secret}",
        ca_hash=ca_hash,
        enroll_url=enroll_url,
        expires_at=row.expires_at,
        purpose=purpose,
        commands={"linux": _linux_command(node_id, node if purpose == JoinToken.REKEY else None, ca_hash, enroll_url)},
        agent_download=_agent_download(bundle_url_for(enroll_url)),
    )


def withdraw(node_id: str, actor: Actor) -> int:
    """Expire every unused token of a node, so that none of them can enroll; returns how many there were."""
    now = clock.now()
    with transaction.atomic():
        count = expire_unused(node_id, now)
        if count:
            audit_log.record("node.join-token", actor, node_id=node_id, target="withdraw", detail=f"{count} withdrawn")
            transaction.on_commit(lambda: hints.changed("nodes", node_id))
    return count


def expire_unused(node_id: str, now: datetime) -> int:
    """Expire the node's unused tokens in the caller's transaction; returns how many."""
    return JoinToken.objects.filter(node_id_text=node_id, used_at=None, expires_at__gt=now).update(expires_at=now)


def digest_of(secret: str) -> str:
    """What is kept of a secret. It has 256 random bits, so a plain hash cannot be searched."""
    return hashlib.sha256(secret.encode()).hexdigest()


def find(token: str, peer: str) -> tuple[JoinToken | None, str]:
    """The row whose secret `token` holds, with the token's id; ``(None, id or "")`` when it is not one.

    Takes the same comparison for a known and an unknown id. A (token, peer) pair with 10 wrong tries gets no row.
    """
    match = _SHAPE.fullmatch(token)
    token_id, secret = match.groups() if match else ("", "")
    row = JoinToken.objects.filter(pk=token_id).first()
    locked = TokenAttempt.objects.filter(token_id_text=token_id, peer=peer, wrong__gte=WRONG_LIMIT).exists()
    right = hmac.compare_digest(digest_of(secret).encode(), (row.digest if row else _DUMMY).encode())
    if row is None:
        return None, ""
    return (row if right and not locked else None), token_id


def count_wrong(token_id: str, peer: str) -> None:
    """Count one wrong try of `peer` on a token that exists. Call it outside the transaction that was refused."""
    TokenAttempt.objects.get_or_create(token_id_text=token_id, peer=peer)
    TokenAttempt.objects.filter(token_id_text=token_id, peer=peer).update(wrong=F("wrong") + 1, last_at=clock.now())


def enroll_url_for(request_host: str) -> str:
    """The URL in a join command: the one that is set, else the host asked if it is listed, else the first listed."""
    configured = settings()
    if configured.enroll_url:
        return configured.enroll_url.rstrip("/")
    host = _without_port(request_host)
    listed = {name.lower() for name in configured.hosts}
    if host not in {*listed, "localhost", "127.0.0.1", "::1"}:
        host = next((name for name in configured.hosts if not name.startswith((".", "*"))), "127.0.0.1")
    return f"https://{f'[{host}]' if ':' in host else host}:{configured.enroll_port}"


def _without_port(host: str) -> str:
    text = host.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _check_shape(node_id: str, display_name: str, lifetime: timedelta) -> None:
    problems = []
    if not is_node_id(node_id):
        problems.append(
            {
                "code": "node_id_invalid",
                "message": "A node id has 1 to 40 lower-case letters, digits and hyphens, and starts with a letter or "
                "digit.",
                "field": "nodeId",
            }
        )
    if len(display_name.strip()) > _DISPLAY_NAME_LENGTH or not display_name.isprintable():
        problems.append(
            {
                "code": "display_name_invalid",
                "message": "A display name has up to 100 printable characters.",
                "field": "displayName",
            }
        )
    if not SHORTEST <= lifetime <= LONGEST:
        problems.append(
            {
                "code": "ttl_invalid",
                "message": "A token lives between 10 minutes and 24 hours.",
                "field": "ttlMinutes",
            }
        )
    if problems:
        raise InvalidRequest(" ".join(problem["message"] for problem in problems), problems=problems)


def _check_node(node_id: str, node: Node | None, purpose: str) -> None:
    if node is not None and node.lifecycle == REVOKED:
        raise NodeRevoked(f"Node {node_id} is revoked and its id never comes back. Choose another id.")
    if purpose == JoinToken.REKEY:
        if node is None:
            raise NotFound(f"There is no node {node_id}. Create a join token instead.")
        if not NodePin.objects.filter(node=node, slot__in=(NodePin.CURRENT, NodePin.PENDING)).exists():
            raise Conflict(f"Node {node_id} has no key to replace. Create a join token instead.")
        return
    if node is None:
        return
    if node.lifecycle == APPROVED:
        raise Conflict(f"Node {node_id} is approved already. Re-pair it with a rekey token, or choose another id.")
    if node.lifecycle == PENDING and purpose == JoinToken.JOIN:
        raise Conflict(f"Node {node_id} has enrolled and waits for approval. Approve or reject it first.")


def _prune(now: datetime) -> None:
    kept = settings().join_token_retention
    if kept > timedelta(0):
        JoinToken.objects.filter(Q(used_at__lt=now - kept) | Q(expires_at__lt=now - kept)).delete()
    TokenAttempt.objects.filter(last_at__lt=now - max(_ATTEMPTS_KEPT, LONGEST)).delete()


def _linux_command(node_id: str, rekeyed: Node | None, ca_hash: str, enroll_url: str) -> str:
    words = ["--enroll-url", enroll_url, "--ca-hash", ca_hash, "--node-id", node_id]
    if rekeyed is not None and rekeyed.is_bootstrap:
        return _own_command(rekeyed, ca_hash)
    if rekeyed is not None:
        words += ["--rekey", "--node-uid", str(rekeyed.uid)]
    return install_command(archive.bundles()[0], bundle_url_for(enroll_url), words)


def _own_command(node: Node, ca_hash: str) -> str:
    """The rekey of this machine's own agent, which is part of the installation and needs no other one."""
    configured = settings()
    words = [sys.executable, "-m", "agent", "join", "--rekey", "--node-uid", str(node.uid), "--node-id", node.pk]
    words += ["--enroll-url", f"https://127.0.0.1:{configured.enroll_port}", "--ca-hash", ca_hash]
    words += ["--address", "127.0.0.1", "--port", str(node.port)]
    words += ["--config", str(configured.data / "agent" / "agent.json")]
    return f"(cd {shlex.quote(str(_ROOT))} && {shlex.join(words)})"


def bundle_url_for(enroll_url: str) -> str:
    """Where another machine downloads the agent: the URL that is set, else this master under the enroll URL's host."""
    configured = settings()
    if configured.agent_bundle_url:
        return configured.agent_bundle_url.rstrip("/")
    host = urlsplit(enroll_url).hostname or "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{configured.port}"


def _agent_download(base_url: str) -> dict[str, Any]:
    rows = [
        {"rid": bundle.rid, "url": f"{base_url}{bundle.path}", "sha256": bundle.sha256, "version": bundle.version}
        for bundle in archive.bundles()
    ]
    return {"bundles": rows}
