"""Errors of the accounts.

MirbadError
├── ReauthenticationFailed       403 reauthentication_failed
├── WrongPassword                403 wrong_password
└── TooManyLogins                429 rate_limited
"""

from mirbad.kernel.errors import MirbadError


class ReauthenticationFailed(MirbadError):
    """The action needs a signed-in session or an owner's token, or log-in is disabled."""

    code = "reauthentication_failed"
    http_status = 403


class WrongPassword(MirbadError):
    """Name and password do not belong together."""

    code = "wrong_password"
    http_status = 403


class TooManyLogins(MirbadError):
    """Too many wrong passwords from one client."""

    code = "rate_limited"
    http_status = 429
