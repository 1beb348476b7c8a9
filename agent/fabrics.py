"""Fabrics: the fast networks that this machine is attached to, as its owner declares them. Nothing is guessed.

Every InfiniBand fabric looks the same from inside one machine, and after a wrong guess a replica starts, reports ready,
and hangs at its first collective. So a fabric is a name that its owner declares, the same on every machine of it:
``ib-b``, or ``ib-b:mlx5_2,mlx5_3`` with the adapters. Without adapters, two InfiniBand adapters are used if the machine
has exactly two free. An adapter is a device of ``class/infiniband`` or a network interface.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_ADAPTERS = 2
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,39}$")
_ADAPTER = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")


class BadFabric(Exception):
    """A fabric declaration that cannot be used; the text has the reason and a valid example."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """One declaration. `adapters` is empty when it lists none."""

    name: str
    adapters: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}:{','.join(self.adapters)}" if self.adapters else self.name


def parse(statements: Iterable[str]) -> tuple[Fabric, ...]:
    """Parse declarations; whether the adapters exist is not checked. Raises BadFabric."""
    found: dict[str, Fabric] = {}
    owner: dict[str, str] = {}
    for statement in statements:
        name, colon, listed = statement.strip().partition(":")
        adapters = tuple(part.strip() for part in listed.split(",")) if colon else ()
        if not _NAME.match(name):
            raise BadFabric(f"'{name}' is not a valid fabric name: use 1-40 characters of a-z 0-9 . _ -")
        if name in found:
            raise BadFabric(f"The fabric {name} is declared twice. List all of its adapters in one declaration.")
        for adapter in adapters:
            if not _ADAPTER.match(adapter):
                raise BadFabric(f"'{adapter}' is not a valid adapter name. Write, for example, {name}:mlx5_2,mlx5_3.")
            if adapter in owner:
                raise BadFabric(_twice(adapter, owner[adapter], name))
            owner[adapter] = name
        found[name] = Fabric(name, adapters)
    return tuple(found.values())


def _twice(adapter: str, first: str, second: str) -> str:
    if first == second:
        return f"The adapter {adapter} is listed twice for the fabric {first}."
    return (
        f"The adapter {adapter} is listed for two fabrics, {first} and {second}. An adapter belongs to one: "
        "a replica over the wrong fabric starts and then hangs."
    )


def resolve(fabrics: Sequence[Fabric], sysfs: Path) -> tuple[Fabric, ...]:
    """Return each fabric with its adapters: the listed ones, or two that no other fabric lists. Raises BadFabric."""
    devices = infiniband(sysfs)
    for fabric in fabrics:
        for adapter in fabric.adapters:
            if adapter not in devices and not is_interface(sysfs, adapter):
                there = ", ".join(devices) or "none"
                raise BadFabric(
                    f"The adapter {adapter} of the fabric {fabric.name} is not on this machine "
                    f"({sysfs}/class/infiniband has {there})."
                )
    bare = [fabric for fabric in fabrics if not fabric.adapters]
    if not bare:
        return tuple(fabrics)
    listed = {adapter for fabric in fabrics for adapter in fabric.adapters}
    free = [device for device in devices if device not in listed]
    if len(free) != DEFAULT_ADAPTERS * len(bare):
        raise BadFabric(_ambiguous(bare, free, sysfs))
    taken = iter(free)
    return tuple(
        fabric if fabric.adapters else Fabric(fabric.name, tuple(next(taken) for _ in range(DEFAULT_ADAPTERS)))
        for fabric in fabrics
    )


def _ambiguous(bare: Sequence[Fabric], free: Sequence[str], sysfs: Path) -> str:
    names = " and ".join(fabric.name for fabric in bare)
    if not free:
        return (
            f"No InfiniBand adapter is free for the fabric {names} ({sysfs}/class/infiniband). Name an adapter or a "
            f"network interface, for example {bare[0].name}:mlx5_0, or remove the fabric."
        )
    example = ",".join(free[:DEFAULT_ADAPTERS])
    return (
        f"The fabric {names} uses {DEFAULT_ADAPTERS} adapters by default, and this machine has {len(free)}: "
        f"{', '.join(free)}. List the adapters of the fabric, for example {bare[0].name}:{example}."
    )


def infiniband(sysfs: Path) -> tuple[str, ...]:
    """Return the names of the machine's InfiniBand devices."""
    try:
        return tuple(sorted(entry.name for entry in (sysfs / "class" / "infiniband").iterdir()))
    except OSError:
        return ()


def is_interface(sysfs: Path, name: str) -> bool:
    """Return whether `name` is a network interface of the machine."""
    return (sysfs / "class" / "net" / name).exists()
