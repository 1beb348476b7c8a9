"""The fabrics of this machine as the master is told: what its owner stated, and what is wrong with it now."""

from collections.abc import Sequence
from pathlib import Path

from agent.fabrics import BadFabric, Fabric, parse, resolve
from agent.state import read_json, write_json
from agent.wire.capability import FabricCapability

_FILE = "fabrics.json"


def keep(state_dir: Path, fabrics: Sequence[Fabric]) -> None:
    """Write down what was stated at a join."""
    write_json(state_dir / _FILE, {"fabrics": [str(fabric) for fabric in fabrics]})


def stated(configured: Sequence[str], state_dir: Path) -> tuple[Fabric, ...]:
    """What ``agent.json`` states, or else what was stated at the join. Raises BadFabric."""
    if configured:
        return parse(configured)
    path = state_dir / _FILE
    if not path.exists():
        return ()
    try:
        listed = (read_json(path) or {})["fabrics"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadFabric(f"{path} cannot be read: state the fabrics in agent.json.") from error
    return parse(str(one) for one in listed)


def capabilities(configured: Sequence[str], state_dir: Path, sysfs: Path) -> tuple[FabricCapability, ...]:
    """The fabrics as the master is told, each with what is wrong with it now. Nothing raises."""
    try:
        fabrics = stated(configured, state_dir)
    except BadFabric:
        return ()
    found = []
    for fabric in fabrics:
        try:
            # One that lists its adapters needs no other to be understood.
            together = (fabric,) if fabric.adapters else fabrics
            (known,) = (one for one in resolve(together, sysfs) if one.name == fabric.name)
            problem = _down(known, sysfs)
        except BadFabric as error:
            known, problem = fabric, str(error)
        found.append(FabricCapability(name=fabric.name, adapters=known.adapters, problem=problem))
    return tuple(found)


def warnings(configured: Sequence[str], state_dir: Path, sysfs: Path) -> tuple[str, ...]:
    """What a person has to look after, as sentences."""
    try:
        stated(configured, state_dir)
    except BadFabric as error:
        return (str(error),)
    return tuple(item.problem for item in capabilities(configured, state_dir, sysfs) if item.problem)


def _down(fabric: Fabric, sysfs: Path) -> str | None:
    """Why an adapter of it cannot be used; None when all can, or do not say."""
    for adapter in fabric.adapters:
        states = _port_states(sysfs, adapter)
        if states and not any("ACTIVE" in state.upper() or state == "up" for state in states):
            return f"The adapter {adapter} of the fabric {fabric.name} is not up ({states[0]}); look at its cable."
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
