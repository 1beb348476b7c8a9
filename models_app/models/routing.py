"""The version of the gateway's routing table."""

from django.db import models


class RoutingVersion(models.Model):
    """One row; bumped in the transaction of every write that the gateway must see."""

    singleton = models.BooleanField(default=True, unique=True)
    version = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return str(self.version)
