"""Roles of people: viewer, operator, owner. They are Django groups of those names."""

from typing import Any, Literal

Role = Literal["viewer", "operator", "owner"]
VIEWER: Role = "viewer"
OPERATOR: Role = "operator"
OWNER: Role = "owner"
_RANK: dict[str, int] = {VIEWER: 1, OPERATOR: 2, OWNER: 3}
ROLES: tuple[Role, ...] = (VIEWER, OPERATOR, OWNER)


def rank_of_role(role: str) -> int:
    """Return the rank of a role by name, 0 for an unknown name."""
    return _RANK.get(role, 0)


def rank(user: Any) -> int:
    """Return 0 for a stranger, then viewer 1, operator 2, owner 3. One query, cached on the user object."""
    if not user.is_authenticated or not user.is_active:
        return 0
    known: int | None = getattr(user, "_mirbad_rank", None)
    if known is None:
        if user.is_superuser:
            known = _RANK[OWNER]
        else:
            known = max((_RANK.get(name, 0) for name in user.groups.values_list("name", flat=True)), default=0)
        user._mirbad_rank = known  # noqa: SLF001 - our own memo on the request's user
    return known


def role_of(user: Any) -> str:
    """Return the name of the user's highest role; empty for a stranger."""
    return next((role for role in ROLES if _RANK[role] == rank(user)), "")


def has_role(user: Any, role: Role) -> bool:
    """Return whether `user` (a Django user, or the anonymous one) has at least `role`."""
    return rank(user) >= _RANK[role]
