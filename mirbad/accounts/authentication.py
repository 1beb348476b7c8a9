"""Authentication of ``/api`` by admin token."""

from typing import Any

from django.contrib.auth.models import AnonymousUser
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from mirbad.accounts import tokens
from mirbad.accounts.models import AdminToken

SCHEME = "Bearer"


class TokenBearer(AnonymousUser):
    """The holder of a token that belongs to no person."""

    @property
    def is_authenticated(self) -> bool:  # type: ignore[override]
        """True: a bearer is known, unlike the anonymous user."""
        return True

    @property
    def is_anonymous(self) -> bool:  # type: ignore[override]
        """False, the opposite of `is_authenticated`."""
        return False


class AdminTokenAuthentication(BaseAuthentication):
    """``Authorization: Bearer mbt_…``. `request.auth` is the AdminToken; its role counts, not the user's."""

    def authenticate(self, request: Request) -> tuple[Any, AdminToken] | None:
        """Return the bearer, None when the header is absent. Raises AuthenticationFailed (401) for an invalid token."""
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != SCHEME.lower():
            return None
        token = tokens.find(secret.strip())
        if token is None:
            raise AuthenticationFailed("This admin token is unknown, expired or revoked. Create a new one.")
        return token.owner or TokenBearer(), token

    def authenticate_header(self, request: Request) -> str:
        """Return the scheme that a 401 requests."""
        return f'{SCHEME} realm="mirbad"'
