"""Named leases: at most one process at a time does a duty. Times are those of the calling process."""

import os
import secrets
import socket
from datetime import timedelta
from pathlib import Path

from django.db import IntegrityError, transaction
from django.db.models import Q

from mirbad.kernel import clock
from nodes.models import Lease

HOST_LENGTH = 40


def take(name: str, owner: str, ttl: timedelta) -> bool:
    """Acquire or renew the lease `name`; False while another owner holds it. Renew well before `ttl` is over."""
    now = clock.now()
    free = Q(owner=owner) | Q(expires_at__lte=now)
    if Lease.objects.filter(free, name=name).update(owner=owner, expires_at=now + ttl):
        return True
    if Lease.objects.filter(name=name).exists():
        return False
    try:
        with transaction.atomic():
            Lease.objects.create(name=name, owner=owner, expires_at=now + ttl)
    except IntegrityError:
        return False
    return True


def release(name: str, owner: str) -> bool:
    """Release the lease if `owner` still holds it; return whether it did."""
    return bool(Lease.objects.filter(name=name, owner=owner).delete()[0])


def release_dead(name: str) -> bool:
    """Release the lease of a process of this host that was killed; return whether there was one.

    Owners call themselves ``host:pid:anything``. A process id that lives again means waiting for the end of the lease.
    """
    owner = holder(name) or ""
    host, _, rest = owner.partition(":")
    pid = rest.partition(":")[0]
    if host != socket.gethostname()[:HOST_LENGTH] or not pid.isdigit() or Path(f"/proc/{pid}").exists():
        return False
    return release(name, owner)


def owner_name() -> str:
    """Return a name that is unique to this process, in the form that `release_dead` reads."""
    return f"{socket.gethostname()[:HOST_LENGTH]}:{os.getpid()}:{secrets.token_hex(4)}"


def holder(name: str) -> str | None:
    """Return the present holder, None when there is none."""
    return Lease.objects.filter(name=name, expires_at__gt=clock.now()).values_list("owner", flat=True).first()
