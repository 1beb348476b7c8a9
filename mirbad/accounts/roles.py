"""The groups behind the roles."""

from django.contrib.auth.models import Group

from mirbad.kernel.roles import OPERATOR, OWNER, ROLES, VIEWER, Role, has_role, rank

__all__ = ["OPERATOR", "OWNER", "ROLES", "VIEWER", "Role", "ensure_groups", "has_role", "rank"]


def ensure_groups() -> dict[str, Group]:
    """Return the group of each role; missing ones are created."""
    return {role: Group.objects.get_or_create(name=role)[0] for role in ROLES}
