"""Who acts behind a request: the name on audit lines and operations."""

from typing import Any

from mirbad.accounts.models import AdminToken
from mirbad.api.addresses import client_address
from mirbad.kernel import actor
from mirbad.kernel.actor import Actor


def of(request: Any) -> Actor:
    """``admin:{12 hex}`` for a signed-in session, ``api:{address}`` for an admin token and for nobody.

    Takes a Django or a DRF request.
    """
    if not isinstance(getattr(request, "auth", None), AdminToken):
        session_key = getattr(getattr(request, "session", None), "session_key", None)
        if session_key and request.user.is_authenticated:
            return actor.admin(session_key)
    return actor.api(client_address(request))
