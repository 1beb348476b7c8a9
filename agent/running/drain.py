"""The drain of this node, as the master reported it last. Kept on disk, for an agent that starts again."""

import logging
from pathlib import Path

from agent.state import read_json, write_json

_log = logging.getLogger("mirbad.agent.drain")
_FILE = "drain.json"


class Drain:
    """The state, in a file of the state folder."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / _FILE
        self.draining = self._read()

    def _read(self) -> bool:
        try:
            value = read_json(self._path)
        except (OSError, ValueError):
            return False
        return isinstance(value, dict) and value.get("draining") is True

    def note(self, *, draining: bool) -> None:
        """Keep the state. One that cannot be written is kept until the agent ends. Blocking."""
        if draining == self.draining:
            return
        self.draining = draining
        try:
            write_json(self._path, {"draining": draining})
        except OSError as error:
            _log.warning("%s cannot be written: %s", _FILE, error.strerror)
