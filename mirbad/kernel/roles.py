"""Roles of people: what a viewer, an operator and an owner may do. They are Django groups of those names."""

from typing import Any, Literal

Role = Literal["viewer", "operator", "owner"]
VIEWER: Role = "viewer"
OPERATOR: Role = "operator"
OWNER: Role = "owner"
_RANK: dict[str, int] = {VIEWER: 1, OPERATOR: 2, OWNER: 3}
ROLES: tuple[Role, ...] = (VIEWER, OPERATOR, OWNER)


def rank_of_role(role: str) -> int:
    """The rank of a role by name, 0 for a name that is none."""
    return _RANK.get(role, 0)


def rank(user: Any) -> int:
    """0 for a stranger, then viewer 1, operator 2, owner 3. One query, remembered on the user object."""
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


def has_role(user: Any, role: Role) -> bool:
    """Whether `user` (a Django user, or the anonymous one) may do what `role` may."""
    return rank(user) >= _RANK[role]
