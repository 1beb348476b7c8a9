"""A named lease: at most one process holds it (the watcher, for one)."""

from django.db import models


class Lease(models.Model):
    """`owner` holds `name` until `expires_at`; taken and renewed by one conditional UPDATE."""

    name = models.CharField(primary_key=True, max_length=40)
    owner = models.CharField(max_length=80)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name}: {self.owner}"
