"""The actor of a request: the name on audit lines and operations."""

from typing import Any

from mirbad.accounts.models import AdminToken
from mirbad.api.addresses import client_address
from mirbad.kernel import actor, roles
from mirbad.kernel.actor import Actor


def of(request: Any) -> Actor:
    """Return ``admin:{12 hex}`` for a signed-in session, ``api:{address}`` for an admin token or an anonymous request.

    The name of the user or of the token, its role and the address go with it. Takes a Django or a DRF request.
    """
    address, token = client_address(request), getattr(request, "auth", None)
    if isinstance(token, AdminToken):
        return actor.api(address, token.name, token.role)
    session_key = getattr(getattr(request, "session", None), "session_key", None)
    if session_key and request.user.is_authenticated:
        return actor.admin(session_key, request.user.get_username(), roles.role_of(request.user), address)
    return actor.api(address)
