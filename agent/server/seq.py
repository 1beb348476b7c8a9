"""Numbers that order the observations of this machine, across restarts of the agent and reboots of the machine."""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from agent.clock import monotonic
from agent.state import read_json, write_json
from agent.wire.capability import Capabilities

log = logging.getLogger(__name__)

BLOCK = 10_000
"""Numbers reserved per write: a crash skips at most this many, which no reader minds."""


class Sequence:
    """``seq`` of one boot, and the number of the last change of capabilities. Not thread-safe.

    A number is used after its block is written. The first number of a run is at least the milliseconds since boot, so
    that ``seq`` grows even when the state folder is lost during a boot.
    """

    def __init__(self, state_dir: Path, boot_id: str) -> None:
        self.boot_id = boot_id
        self._path = state_dir / "seq.json"
        stored = self._read()
        same_boot = stored.get("bootId") == boot_id
        self._last = max(int(stored.get("limit", 0)) if same_boot else 0, int(monotonic() * 1000))
        self._limit = self._last
        self._digest = str(stored.get("capabilitiesDigest", ""))
        self._capabilities_seq = int(stored.get("capabilitiesSeq", 0))

    @property
    def last(self) -> int:
        """The last number used."""
        return self._last

    @property
    def capabilities_seq(self) -> int:
        """The number of the current capabilities; it changes with them."""
        return self._capabilities_seq

    def next(self) -> int:
        """Return a number greater than all before in this boot."""
        if self._last >= self._limit:
            self._write(self._last + BLOCK)
        self._last += 1
        return self._last

    def note(self, capabilities: Capabilities) -> bool:
        """Note `capabilities`. Return whether they differ from the last noted, also across restarts."""
        text = json.dumps(capabilities.to_wire(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest == self._digest:
            return False
        self._digest = digest
        self._capabilities_seq += 1
        self._write(self._limit)
        return True

    def _write(self, limit: int) -> None:
        value = {
            "bootId": self.boot_id,
            "limit": limit,
            "capabilitiesDigest": self._digest,
            "capabilitiesSeq": self._capabilities_seq,
        }
        try:
            write_json(self._path, value)
        except OSError as error:
            # A full disk must not silence the machine: after a restart the milliseconds since boot still grow.
            log.error("%s cannot be written: %s", self._path, error.strerror)
        self._limit = limit

    def _read(self) -> dict[str, Any]:
        try:
            value = read_json(self._path)
        except ValueError:
            return {}  # the milliseconds since boot replace the lost number
        return value if isinstance(value, dict) else {}
