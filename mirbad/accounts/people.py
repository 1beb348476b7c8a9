"""People: the admin that Mirbad creates, and the switch that disables log-in."""

from django.contrib.auth.models import User
from django.db import transaction

from audit import log as audit
from mirbad.accounts import passwords
from mirbad.accounts.roles import OWNER, ensure_groups
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.conf import settings

ADMIN = "admin"


def login_is_disabled() -> bool:
    """Return whether log-in is disabled: MIRBAD_ADMIN_PASSWORD is set, but empty."""
    return settings().admin_password == ""


def set_admin(password: str, source: str) -> None:
    """Call `ensure_admin`, and record a change with its `source` in the audit log. Raises WeakPassword."""
    with transaction.atomic():
        if ensure_admin(password, source=source):
            audit.record("person", CONFIG, target=ADMIN, detail=f"password and rights set from {source}")


def ensure_admin(password: str, source: str = "") -> bool:
    """Create or update the user ``admin``: an owner with `password`. Return whether anything changed.

    An empty `password` leaves the account without a usable one, which also ends its sessions. An unchanged password is
    not written again, so sessions outlive a restart; only a new one has to keep the rules. Raises WeakPassword, which
    names `source`, and changes nothing then.
    """
    groups = ensure_groups()
    with transaction.atomic():
        user, made = User.objects.get_or_create(username=ADMIN, defaults={"is_staff": True, "is_superuser": True})
        changed = made
        if password and not user.check_password(password):
            passwords.check(password, user, source=source)
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
