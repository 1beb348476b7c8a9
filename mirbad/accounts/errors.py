"""Errors of the accounts.

MirbadError
├── ReauthenticationFailed       403 reauthentication_failed
├── WrongPassword                403 wrong_password
├── TooManyLogins                429 rate_limited
└── WeakPassword                 422 weak_password
"""

from mirbad.kernel.errors import MirbadError


class ReauthenticationFailed(MirbadError):
    """The action needs a signed-in session or an owner's token, or log-in is disabled."""

    code = "reauthentication_failed"
    http_status = 403


class WrongPassword(MirbadError):
    """Wrong user name or password."""

    code = "wrong_password"
    http_status = 403


class TooManyLogins(MirbadError):
    """Too many attempts to log in, by one client or under one name."""

    code = "rate_limited"
    http_status = 429


class WeakPassword(MirbadError):
    """A new password breaks a rule."""

    code = "weak_password"
    http_status = 422
