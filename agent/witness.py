"""The agent as a witness of the master's audit log: it keeps the last head, and signs only heads that continue it.

So whoever rewrites the log, with every key of the master, is contradicted by each agent that saw it before. A head that
does not continue the last one is refused and kept beside it, until an owner decides, in a line of the log itself, that
the present log counts. Both heads and that line are kept for good: whoever has every key of the master can write such a
line, but cannot take it back.
"""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent import clock
from agent.common import merkle
from agent.common.files import write_bytes
from agent.common.keys import verifies
from agent.errors import AgentError
from agent.state import read_json, write_json
from agent.wire.errors import AgentCode
from agent.wire.witness import (
    ACCEPTING,
    HEAD_LINE,
    MAX_BREAKS,
    WITNESS_LINE,
    AcceptedBreak,
    AuditHead,
    BreakRequest,
    WitnessRequest,
    WitnessView,
)

log = logging.getLogger(__name__)

FILE = "witness.json"


def stored(state_dir: Path, node_uid: str) -> WitnessView | None:
    """Return what the agent holds on disk for the node with `node_uid`. Raises OSError, ValueError (damaged)."""
    value = read_json(state_dir / FILE)
    try:
        return None if value is None or value.pop("nodeUid") != node_uid else WitnessView.model_validate(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{state_dir / FILE} is damaged") from error


class Witness:
    """The head held for the node with this id and uid. One of another uid (before a new join) does not count."""

    def __init__(self, state_dir: Path, node_id: str, node_uid: str) -> None:
        self._path, self._key_path = state_dir / FILE, state_dir / "witness.key"
        self._node_id, self._node_uid = node_id, node_uid
        self._lock = asyncio.Lock()

    async def view(self) -> WitnessView:
        """Return the head that is held. Raises AgentError INTERNAL when it cannot be read."""
        async with self._lock:
            return await asyncio.to_thread(self._load)

    async def witness(self, request: WitnessRequest) -> WitnessView:
        """Sign the head and hold it from now on, on disk before this returns.

        Raises AgentError: INVALID_REQUEST (not signed by the key that it names), AUDIT_HEAD_REFUSED (another log's key,
        or not a continuation of the head that is held).
        """
        async with self._lock:
            return await asyncio.to_thread(self._take, request)

    async def accept(self, request: BreakRequest) -> WitnessView:
        """Hold a head that an owner decided for, whatever was held; the break is on disk before this returns.

        Raises AgentError: INVALID_REQUEST (the head is not signed by its key, the line is none), AUDIT_HEAD_REFUSED
        (the line is not under the head, is no owner's decision about what this node holds, or `MAX_BREAKS` are kept).
        """
        async with self._lock:
            return await asyncio.to_thread(self._accept, request)

    def _accept(self, request: BreakRequest) -> WitnessView:
        head, view = request.head, self._load()
        _require_signed(head)
        if view.breaks and view.breaks[-1].line == request.line:
            return view  # a repeated call, whose answer was lost
        if view.held is None:
            raise AgentError(AgentCode.AUDIT_HEAD_REFUSED, "This node holds no head that it could leave.")
        if reason := self._objection(request, view):
            raise AgentError(AgentCode.AUDIT_HEAD_REFUSED, reason, {"held": view.held.to_wire()})
        left = AcceptedBreak(
            was=view.held,
            signature=view.signature,
            refused=view.refused,
            now=head,
            line=request.line,
            time=clock.now_text(),
        )
        log.critical("takes a log of %s in place of %s on a person's decision", head.name, view.held.name)
        changes: dict[str, Any] = {"refused": None, "refused_at": None, "breaks": (*view.breaks, left)}
        return self._hold(view.model_copy(update=changes), head)

    def _objection(self, request: BreakRequest, view: WitnessView) -> str:
        decision, head = _decision(request.line), request.head
        seq, proof = decision.get("seq"), [bytes.fromhex(step) for step in request.proof]
        leaf = merkle.leaf(request.line.encode())
        if not isinstance(seq, int) or not merkle.includes(seq - 1, head.size, leaf, proof, bytes.fromhex(head.root)):
            return "The decision is not a line of the log that the node is to take."
        at_stake = {one.name for one in (view.held, view.refused) if one is not None}
        about_us = decision.get("nodeId") == self._node_id and decision.get("target") in at_stake
        if decision.get("action") != ACCEPTING or not about_us:
            return "The line is no decision about the head that this node holds or refused."
        if decision.get("role") != "owner" or not decision.get("person"):
            return "The line names no owner who decided."
        if len(view.breaks) >= MAX_BREAKS:
            return f"This node keeps {MAX_BREAKS} accepted breaks and takes no further one. Move its {FILE} away."
        return ""

    def _hold(self, view: WitnessView, head: AuditHead) -> WitnessView:
        signature = self._key().sign((WITNESS_LINE + head.text()).encode()).hex()
        view = view.model_copy(update={"held": head, "held_at": clock.now_text(), "signature": signature})
        self._store(view)
        return view

    def _take(self, request: WitnessRequest) -> WitnessView:
        head = request.head
        _require_signed(head)
        view = self._load()
        if view.held is not None and (reason := _break(view.held, request)):
            self._store(view.model_copy(update={"refused": head, "refused_at": clock.now_text()}))
            log.critical("refused a head of the master's audit log: %s", reason)
            fields = {"held": view.held.to_wire()}
            raise AgentError(AgentCode.AUDIT_HEAD_REFUSED, f"{reason} The log was cut or rewritten.", fields)
        return self._hold(view, head)

    def _load(self) -> WitnessView:
        try:
            view = stored(self._path.parent, self._node_uid)
            return view or WitnessView(key=self._key().public_key().public_bytes_raw().hex())
        except (OSError, ValueError) as error:
            text = f"{self._path} cannot be read, so no head of the audit log is signed. Restore or remove it."
            raise AgentError(AgentCode.INTERNAL, text) from error

    def _store(self, view: WitnessView) -> None:
        try:
            write_json(self._path, {"nodeUid": self._node_uid, **view.to_wire()})
        except OSError as error:
            raise AgentError(AgentCode.INTERNAL, f"The head cannot be written: {error.strerror}.") from error

    def _key(self) -> Ed25519PrivateKey:
        try:
            return Ed25519PrivateKey.from_private_bytes(self._key_path.read_bytes())
        except FileNotFoundError:
            key = Ed25519PrivateKey.generate()
            write_bytes(self._key_path, key.private_bytes_raw())
            return key


def _require_signed(head: AuditHead) -> None:
    if not verifies(head.key, head.signature, HEAD_LINE + head.text()):
        raise AgentError(AgentCode.INVALID_REQUEST, "The head is not signed by the key that it names.")


def _decision(line: str) -> dict[str, Any]:
    try:
        decision = dict(json.loads(line))
    except (ValueError, TypeError, RecursionError):
        decision = {}
    # In the form that is hashed it is plain ASCII on one line, also where a person reads it.
    if not decision or json.dumps(decision, sort_keys=True, separators=(",", ":")) != line:
        raise AgentError(AgentCode.INVALID_REQUEST, "The decision is not a line of an audit log.")
    return decision


def _break(held: AuditHead, request: WitnessRequest) -> str:
    head = request.head
    if head.key != held.key:
        return f"It is signed by another key than the one of {held.size} lines from {held.time}."
    proof = [bytes.fromhex(step) for step in request.proof]
    if not merkle.continues(held.size, bytes.fromhex(held.root), head.size, bytes.fromhex(head.root), proof):
        return f"A log of {head.size} lines does not continue the one of {held.size} lines from {held.time}."
    return ""
