"""Actors: the names on audit lines and operations."""

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Actor:
    """`name` is one of ``admin:{12 hex}``, ``api:{ip}``, ``system:{part}``, ``config``.

    `person` is the name of the user or token behind it, with its role; `address` where the request came from.
    Operations keep the name alone.
    """

    name: str
    person: str = field(default="", compare=False)
    role: str = field(default="", compare=False)
    address: str = field(default="", compare=False)

    @property
    def is_system(self) -> bool:
        """Return whether this is a part of the master that acts automatically."""
        return self.name.startswith("system:")

    def __str__(self) -> str:
        return self.name


CONFIG = Actor("config")


def admin(session_id: str, person: str = "", role: str = "", address: str = "") -> Actor:
    """Return a person in a signed-in session; the session id itself is never stored."""
    return Actor(f"admin:{hashlib.sha256(session_id.encode()).hexdigest()[:12]}", person, role, address)


def api(ip: str, person: str = "", role: str = "") -> Actor:
    """Return a program with an admin token (`person` is its name), by the address that it called from."""
    return Actor(f"api:{ip}", person, role, ip if person else "")


def system(part: str) -> Actor:
    """Return a part of the master that acts automatically: autostart, job, restore, move, pki."""
    return Actor(f"system:{part}")
