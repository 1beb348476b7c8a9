"""Rights on ``/api`` and on pages. Every view states its role; a view that states none is for owners alone."""

from typing import Any

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from mirbad.accounts.errors import ReauthenticationFailed
from mirbad.accounts.models import AdminToken
from mirbad.accounts.people import login_is_disabled
from mirbad.kernel.roles import OPERATOR, OWNER, VIEWER, rank, rank_of_role
from mirbad.web.access import require_role

__all__ = ["RolePermission", "rank_of", "require_reauthentication", "require_role"]


class RolePermission(BasePermission):
    """Reading needs `view.read_role` (default viewer), all else `view.required_role` (default operator)."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return whether the caller's rank is high enough for the method."""
        if request.method in SAFE_METHODS:
            required = getattr(view, "read_role", VIEWER)
        else:
            required = getattr(view, "required_role", OPERATOR)
        self.message = f"This needs the role {required}. Ask an owner for it."
        return rank_of(request) >= rank_of_role(required)


def rank_of(request: Any) -> int:
    """Return the caller's rank: of the session's user, or of the token, never above that of the token's owner."""
    token = getattr(request, "auth", None)
    return rank_of_token(token) if isinstance(token, AdminToken) else rank(request.user)


def rank_of_token(token: AdminToken) -> int:
    """Return the rank of a token, never above that of its owner."""
    own = rank_of_role(token.role)
    return own if token.owner is None else min(own, rank(token.owner))


def require_reauthentication(request: Any) -> None:
    """Check that the caller may join, rekey, revoke, force-commit or take over. Raises ReauthenticationFailed.

    A signed-in session suffices, and so does an owner's token; while log-in is disabled nobody may.
    """
    if login_is_disabled():
        raise ReauthenticationFailed(
            "Admin log-in is disabled (MIRBAD_ADMIN_PASSWORD is set but empty). Set a password and restart Mirbad."
        )
    if isinstance(getattr(request, "auth", None), AdminToken):
        if rank_of(request) < rank_of_role(OWNER):
            raise ReauthenticationFailed("This needs a signed-in session, or an admin token with the role owner.")
    elif not request.user.is_authenticated:
        raise ReauthenticationFailed("Sign in first.")
