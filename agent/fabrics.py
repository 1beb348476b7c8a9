"""Fabrics: which fast networks this machine is attached to, as its owner states it. Nothing here is ever guessed.

Every InfiniBand fabric looks the same from inside one machine, and a wrong guess makes a replica that starts, reports
that it is well, and hangs at its first exchange. So a fabric is a name that its owner gives, alike on every machine of
it: ``ib-b``, or ``ib-b:mlx5_2,mlx5_3`` with the adapters. Without them two InfiniBand adapters are taken, if there are
just two to take. An adapter is a device of ``class/infiniband`` or a network interface.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

DEFAULT_ADAPTERS = 2
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,39}$")
_ADAPTER = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")


class BadFabric(Exception):
    """What was stated of fabrics cannot be; the text says why, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """One statement. `adapters` is empty while it names none."""

    name: str
    adapters: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}:{','.join(self.adapters)}" if self.adapters else self.name


def parse(statements: Iterable[str]) -> tuple[Fabric, ...]:
    """Statements as fabrics; their adapters are not looked at yet. Raises BadFabric."""
    found: dict[str, Fabric] = {}
    owner: dict[str, str] = {}
    for statement in statements:
        name, colon, listed = statement.strip().partition(":")
        adapters = tuple(part.strip() for part in listed.split(",")) if colon else ()
        if not _NAME.match(name):
            raise BadFabric(f"'{name}' cannot name a fabric: use 1-40 lower-case letters, digits, dots and hyphens.")
        if name in found:
            raise BadFabric(f"The fabric {name} is stated twice; list all of its adapters in one place.")
        for adapter in adapters:
            if not _ADAPTER.match(adapter):
                raise BadFabric(f"'{adapter}' cannot name an adapter; write {name}:mlx5_2,mlx5_3.")
            if adapter in owner:
                raise BadFabric(_twice(adapter, owner[adapter], name))
            owner[adapter] = name
        found[name] = Fabric(name, adapters)
    return tuple(found.values())


def _twice(adapter: str, first: str, second: str) -> str:
    if first == second:
        return f"The adapter {adapter} is listed twice for the fabric {first}."
    return (
        f"The adapter {adapter} is listed under two fabrics, {first} and {second}. An adapter is attached to one: "
        "a replica over the wrong one would start, and hang."
    )


def resolve(fabrics: Sequence[Fabric], sysfs: Path) -> tuple[Fabric, ...]:
    """Each with its adapters: those that it lists, or two of the machine's that no other lists. Raises BadFabric."""
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
        raise BadFabric(_which(bare, free, sysfs))
    taken = iter(free)
    return tuple(
        fabric if fabric.adapters else Fabric(fabric.name, tuple(next(taken) for _ in range(DEFAULT_ADAPTERS)))
        for fabric in fabrics
    )


def _which(bare: Sequence[Fabric], free: Sequence[str], sysfs: Path) -> str:
    names = " and ".join(fabric.name for fabric in bare)
    if not free:
        return (
            f"No InfiniBand adapter is left for the fabric {names} ({sysfs}/class/infiniband). Name what it is "
            f"attached by, for instance {bare[0].name}:mlx5_0 or a network interface, or leave the fabric out."
        )
    example = ",".join(free[:DEFAULT_ADAPTERS])
    return (
        f"The fabric {names} takes {DEFAULT_ADAPTERS} adapters unless it says which, and {len(free)} could be meant: "
        f"{', '.join(free)}. Say which are attached to it, for instance {bare[0].name}:{example}."
    )


def infiniband(sysfs: Path) -> tuple[str, ...]:
    """The machine's InfiniBand devices by name."""
    try:
        return tuple(sorted(entry.name for entry in (sysfs / "class" / "infiniband").iterdir()))
    except OSError:
        return ()


def is_interface(sysfs: Path, name: str) -> bool:
    """Whether `name` is a network interface of the machine."""
    return (sysfs / "class" / "net" / name).exists()
