"""The fabrics of this machine as reported to the master: the owner's declarations, and their current problems."""

from collections.abc import Sequence
from pathlib import Path

from agent.fabrics import BadFabric, Fabric, parse, resolve
from agent.state import read_json, write_json
from agent.wire.capability import FabricCapability

_FILE = "fabrics.json"


def keep(state_dir: Path, fabrics: Sequence[Fabric]) -> None:
    """Store the declarations of a join."""
    write_json(state_dir / _FILE, {"fabrics": [str(fabric) for fabric in fabrics]})


def stated(configured: Sequence[str], state_dir: Path) -> tuple[Fabric, ...]:
    """Return the declarations in ``agent.json``, else those of the join. Raises BadFabric."""
    if configured:
        return parse(configured)
    path = state_dir / _FILE
    if not path.exists():
        return ()
    try:
        listed = (read_json(path) or {})["fabrics"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadFabric(f"{path} cannot be read. Declare the fabrics in agent.json.") from error
    return parse(str(one) for one in listed)


def capabilities(configured: Sequence[str], state_dir: Path, sysfs: Path) -> tuple[FabricCapability, ...]:
    """Return the fabrics for the master, each with its current problem. Nothing raises."""
    try:
        fabrics = stated(configured, state_dir)
    except BadFabric:
        return ()
    found = []
    for fabric in fabrics:
        try:
            # A fabric that lists its adapters is resolved alone.
            together = (fabric,) if fabric.adapters else fabrics
            (known,) = (one for one in resolve(together, sysfs) if one.name == fabric.name)
            problem = _down(known, sysfs)
        except BadFabric as error:
            known, problem = fabric, str(error)
        found.append(FabricCapability(name=fabric.name, adapters=known.adapters, problem=problem))
    return tuple(found)


def warnings(configured: Sequence[str], state_dir: Path, sysfs: Path) -> tuple[str, ...]:
    """Return the problems that need a person, as sentences."""
    try:
        stated(configured, state_dir)
    except BadFabric as error:
        return (str(error),)
    return tuple(item.problem for item in capabilities(configured, state_dir, sysfs) if item.problem)


def _down(fabric: Fabric, sysfs: Path) -> str | None:
    """Return why an adapter of the fabric cannot be used; None when all can, or their state is unknown."""
    for adapter in fabric.adapters:
        states = _port_states(sysfs, adapter)
        if states and not any("ACTIVE" in state.upper() or state == "up" for state in states):
            return f"The adapter {adapter} of the fabric {fabric.name} is down ({states[0]}). Check its cable."
    return None


def _port_states(sysfs: Path, adapter: str) -> list[str]:
    ports = sorted((sysfs / "class" / "infiniband" / adapter / "ports").glob("*/state"))
    interface = sysfs / "class" / "net" / adapter / "operstate"
    states = []
    for path in ports or [interface]:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text != "unknown":
            states.append(text)
    return states
