"""Fencing: the highest claim ever admitted, on disk before the response that admits it.

A claim is an epoch and a master's instance id. A lower epoch is stale, an equal epoch of another instance competes;
both are refused. A newer claim waits for calls in progress of the older one, so that no effect of an old master starts
after the new one has received its response.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import ValidationError

from agent.errors import AgentError
from agent.state import read_json, write_json
from agent.wire.errors import AgentCode
from agent.wire.fence import Claim

log = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0
"""Time that a newer claim waits for calls of an older one. They only request and return, so it is never reached."""


class BrokenFence(Exception):
    """``fence.json`` cannot be used; the text says how to fix it."""


class Fence:
    """The claim held for the node with `node_uid`. A claim for another uid (before a new join) does not count."""

    def __init__(self, state_dir: Path, node_uid: str) -> None:
        self._path = state_dir / "fence.json"
        self._node_uid = node_uid
        self._held = self._read()
        self._lock = asyncio.Lock()
        self._at_work: Counter[Claim] = Counter()
        self._idle = asyncio.Event()

    @property
    def held(self) -> Claim | None:
        """The claim on disk, None before the first."""
        return self._held

    @asynccontextmanager
    async def admitted(self, claim: Claim) -> AsyncIterator[None]:
        """Admit a call under `claim`, and count it until the block ends. Raises AgentError STALE_MASTER,
        COMPETING_MASTER.
        """
        async with self._lock:
            self._compare(claim)
            if claim != self._held:
                await self._store(claim)
            self._at_work[claim] += 1
        try:
            yield
        finally:
            self._at_work[claim] -= 1
            if not self._at_work[claim]:
                del self._at_work[claim]
            self._idle.set()

    def _compare(self, claim: Claim) -> None:
        held = self._held
        if held is None or claim.epoch > held.epoch or claim == held:
            return
        fields = {"held": held.to_wire()}
        if claim.epoch < held.epoch:
            raise AgentError(
                AgentCode.STALE_MASTER,
                f"This node obeys epoch {held.epoch}, the request has epoch {claim.epoch}. "
                "If the other master is stopped, take over on this one.",
                fields,
            )
        raise AgentError(
            AgentCode.COMPETING_MASTER,
            f"Another master holds epoch {held.epoch} on this node. Stop one of them and take over on the other.",
            fields,
        )

    async def _store(self, claim: Claim) -> None:
        try:
            # On the event loop on purpose: nothing may run between the comparison and the write of the claim, and
            # claims change once per takeover.
            write_json(self._path, {"nodeUid": self._node_uid, **claim.to_wire()})
        except OSError as error:
            raise AgentError(AgentCode.INTERNAL, f"The claim cannot be written: {error.strerror}.") from error
        self._held = claim
        log.info("admitted the claim of epoch %d by master %s", claim.epoch, claim.instance_id)
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while any(older != claim for older in self._at_work):
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            log.warning("requests of an older claim are still in progress after %g s", DRAIN_SECONDS)

    def _read(self) -> Claim | None:
        try:
            value = read_json(self._path)
            if value is None or value["nodeUid"] != self._node_uid:
                return None
            return Claim.model_validate(value)
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            raise BrokenFence(
                f"{self._path} cannot be read, so the agent does not know its master. "
                "Restore the file, or join anew with --rekey after removing it"
            ) from error


def held_claim(state_dir: Path, node_uid: str) -> Claim | None:
    """Return the claim on disk, for a caller that only reads. Raises BrokenFence."""
    return Fence(state_dir, node_uid).held
