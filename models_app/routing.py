"""The version of what the gateway routes by: bumped in the transaction of every write that the gateway must see."""

from django.db.models import F

from models_app.models import RoutingVersion


def bump() -> None:
    """Count the routing version up by one, inside the caller's transaction.

    The row's lock is held until that transaction ends: writers of names and placements stand in one line.
    """
    if not RoutingVersion.objects.filter(singleton=True).update(version=F("version") + 1):
        RoutingVersion.objects.get_or_create(singleton=True)
        RoutingVersion.objects.filter(singleton=True).update(version=F("version") + 1)


def version() -> int:
    """The present version; 0 before the first write."""
    return RoutingVersion.objects.filter(singleton=True).values_list("version", flat=True).first() or 0
