"""The state of this machine as a witness of the master's audit log, for ``mirbad-agent status``."""

from pathlib import Path
from typing import Any

from agent.witness import FILE, stored


def facts(state_dir: Path, node_uid: str) -> dict[str, Any]:
    """Return the `WitnessView` on disk as JSON values; empty before the first head. A damaged file is a ``problem``."""
    try:
        view = stored(state_dir, node_uid)
    except (OSError, ValueError):
        return {"problem": f"{state_dir / FILE} cannot be read. Restore or remove it."}
    return view.to_wire() if view else {}


def lines(witness: dict[str, Any]) -> list[str]:
    """Return the lines for a person: the head held, a conflict, and every accepted break with both heads."""
    if problem := witness.get("problem"):
        return [f"Audit log        {problem}"]
    shown = []
    if held := witness.get("held"):
        shown.append(f"Audit log        {_words(held)}, seen {witness['heldAt'] or held['time']}")
    if refused := witness.get("refused"):
        shown.append(f"  CONFLICT       refused {_words(refused)}, at {witness['refusedAt'] or refused['time']}")
    for one in witness.get("breaks", ()):
        shown.append(f"  accepted       {_words(one['now'])} in place of {_words(one['was'])}, at {one['time']}")
        shown.append(f"  decided by     {one['line']}")
    return shown


def _words(head: dict[str, Any]) -> str:
    return f"{head['size']} lines, root {head['root']}"
