"""Who acts: the name that audit lines and operations carry."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Actor:
    """`name` is one of ``admin:{12 hex}``, ``api:{ip}``, ``system:{part}``, ``config``."""

    name: str

    def __str__(self) -> str:
        return self.name


CONFIG = Actor("config")


def admin(session_id: str) -> Actor:
    """A person in a signed-in session; the session id itself is never written anywhere."""
    return Actor(f"admin:{hashlib.sha256(session_id.encode()).hexdigest()[:12]}")


def api(ip: str) -> Actor:
    """A program that came with an admin API token, by the address it came from."""
    return Actor(f"api:{ip}")


def system(part: str) -> Actor:
    """A part of the master that acts by itself: autostart, job, restore, move, pki."""
    return Actor(f"system:{part}")
