"""People: the admin that Mirbad makes by itself, and whether anyone may log in."""

from django.contrib.auth.models import User
from django.db import transaction

from mirbad.accounts.roles import OWNER, ensure_groups
from mirbad.kernel.conf import settings

ADMIN = "admin"


def login_is_disabled() -> bool:
    """Whether the operator switched log-in off: MIRBAD_ADMIN_PASSWORD is set, but empty."""
    return settings().admin_password == ""


def ensure_admin(password: str) -> bool:
    """Make or update the user ``admin``: an owner with `password`. Returns whether anything changed.

    An empty `password` leaves the account without a usable one, which also ends its sessions. An unchanged password is
    not written again, so sessions outlive a restart.
    """
    groups = ensure_groups()
    with transaction.atomic():
        user, made = User.objects.get_or_create(username=ADMIN, defaults={"is_staff": True, "is_superuser": True})
        changed = made
        if password and not user.check_password(password):
            user.set_password(password)
            changed = True
        elif not password and (made or user.has_usable_password()):
            user.set_unusable_password()
            changed = True
        if not (user.is_active and user.is_staff and user.is_superuser):
            user.is_active = user.is_staff = user.is_superuser = True
            changed = True
        if changed:
            user.save()
        user.groups.add(groups[OWNER])
    return changed
