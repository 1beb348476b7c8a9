"""The version of the gateway's routing table: bumped in the transaction of every write that the gateway must see."""

from django.db.models import F

from models_app.models import RoutingVersion


def bump() -> None:
    """Increase the routing version by one, inside the caller's transaction.

    The row's lock is held until that transaction ends, so writers of names and placements run one after the other.
    """
    if not RoutingVersion.objects.filter(singleton=True).update(version=F("version") + 1):
        RoutingVersion.objects.get_or_create(singleton=True)
        RoutingVersion.objects.filter(singleton=True).update(version=F("version") + 1)


def version() -> int:
    """Return the present version; 0 before the first write."""
    return RoutingVersion.objects.filter(singleton=True).values_list("version", flat=True).first() or 0
