"""The master's machine as a node of its own, by the protocol of every other node.

Only the approval is automatic: the fingerprint comes from the agent's own state on this very machine, so no person has
to compare it.
"""

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jobs.loops import configured_takeover
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.conf import settings
from mirbad.up.bootstrap import agentcall, waiting
from mirbad.up.errors import CannotStart
from mirbad.up.programs import Layout
from mirbad.up.progress import ProgressDisplay
from nodes import fencing, queries, registry
from nodes.enrollment import join_command, tokens
from nodes.models import JoinToken, Node
from nodes.states import APPROVED, PENDING, RE_PAIR, REVOKED

_ENROLL_SECONDS = 180.0
_ONLINE_SECONDS = 180.0
_TAKEOVER_SECONDS = 180.0


class OwnNode:
    """The steps for the node `MIRBAD_BOOTSTRAP_NODE`."""

    def __init__(self, layout: Layout, environ: Mapping[str, str], progress: ProgressDisplay) -> None:
        self._layout = layout
        self._environ = environ
        self._progress = progress
        self._id = settings().bootstrap_node

    def ensure(self, report: Callable[[str], None]) -> bool:
        """Join and approve as far as needed. False when an operator has revoked the node."""
        agentcall.configure(self._layout)
        node = Node.objects.filter(pk=self._id).first()
        if node is not None and node.lifecycle == REVOKED:
            self._progress.note(f"Node {self._id} is revoked. This machine runs no models; other nodes do.")
            return False
        identity = agentcall.status(self._layout, self._environ)
        if not _belongs(identity, node) or _is_to_be_re_paired(node):
            self._join(node)
            identity = agentcall.status(self._layout, self._environ)
            self._progress.done(f"This machine joined as node {self._id}")
        report("joined")
        registry.follow_port(self._id, settings().agent_port, CONFIG)
        self._approve(str(identity["spkiSha256"]))
        return True

    def wait_until_online(self) -> None:
        """Wait until the node is online. Raises CannotStart with the node's own reasons."""
        waiting.until(
            self._progress, self._why_not_online, seconds=_ONLINE_SECONDS, failure=f"Node {self._id} is not online"
        )
        self._progress.done(f"Node {self._id} is online")

    def _join(self, node: Node | None) -> None:
        waiting.until(
            self._progress, self._why_no_listener, seconds=_ENROLL_SECONDS, failure="The enroll listener does not start"
        )
        # After a recovery the takeover comes first: a fenced master gives out no token.
        waiting.until(self._progress, self._why_fenced, seconds=_TAKEOVER_SECONDS, failure="The takeover is not over")
        self._progress.now(f"joining this machine as node {self._id}")
        # a node that is known but lost its state folder returns under its uid, with a new key
        again = node is not None and node.lifecycle == APPROVED
        purpose = JoinToken.REKEY if again else JoinToken.BOOTSTRAP
        made = tokens.create(self._id, actor=CONFIG, purpose=purpose)
        arguments = ["--enroll-url", join_command.own_enroll_url(), "--ca-hash", made.ca_hash]
        arguments += ["--node-id", self._id]
        if again and node is not None:
            arguments += ["--rekey", "--node-uid", str(node.uid)]
        agentcall.join(self._layout, self._environ, made.token, *arguments)

    def _approve(self, pin: str) -> None:
        node = Node.objects.get(pk=self._id)
        if node.lifecycle != PENDING and not node.pins.filter(slot="pending").exists():
            return
        registry.approve(self._id, pin, CONFIG)
        self._progress.done(f"Node {self._id} is approved (key {pin[:16]}…)")

    def _why_no_listener(self) -> str:
        host, port = settings().local_host, settings().enroll_port
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError as error:
            return f"waiting for the enroll listener on {host}, port {port} ({error.strerror or error})"
        return ""

    @staticmethod
    def _flag() -> Path:
        return settings().data / configured_takeover.FLAG

    def _why_fenced(self) -> str:
        """Return why this master commands no node yet. Raises CannotStart when no takeover is coming."""
        if not fencing.is_fenced():
            return ""
        if configured_takeover.is_coming():
            return "taking the nodes over"
        how = "log in as an owner" if fencing.stands_down() else f"log in, or run: touch {self._flag()}"
        raise CannotStart(f"This master commands no node: {fencing.fenced_reason()} To take over, {how}")

    def _why_not_online(self) -> str:
        node = Node.objects.get(pk=self._id)
        if node.lifecycle == REVOKED:
            raise CannotStart(f"Node {self._id} was revoked meanwhile.")
        self._why_fenced()
        if node.last_seen_at is None or node.last_seen_at.timestamp() < self._progress.started:
            return f"waiting for node {self._id}: no status yet"  # the stored status may be of the last run
        shown = queries.shown_state(node, list(node.conditions.all()))
        if shown.name in {"Online", "Degraded"}:
            return ""
        return f"waiting for node {self._id}: {shown.name}{_reasons(shown.reasons)}"


def _belongs(identity: Mapping[str, Any], node: Node | None) -> bool:
    return node is not None and bool(identity.get("joined", True)) and identity.get("nodeUid") == str(node.uid)


def _is_to_be_re_paired(node: Node | None) -> bool:
    """Return whether the CA was replaced, so that the agent on this machine knows a former master."""
    return node is not None and node.conditions.filter(code=RE_PAIR).exists()


def _reasons(reasons: tuple[str, ...]) -> str:
    return f" ({'; '.join(map(str, reasons))})" if reasons else ""
