"""The rules of a new password (`AUTH_PASSWORD_VALIDATORS`), the same wherever one is set."""

from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError

from mirbad.accounts.errors import WeakPassword


def check(password: str, user: Any = None, *, source: str = "") -> None:
    """Raise WeakPassword with one sentence for each broken rule. `source` names the setting or file to change."""
    try:
        validate_password(password, user)
    except ValidationError as error:
        where = f"The password of {source} is refused" if source else "The password is refused"
        raise WeakPassword(f"{where}: {' '.join(error.messages)} Choose another one.") from None
