"""Times in which ``/v1`` refuses models on purpose."""

from django.db import models
from django.db.models import Q


class MaintenanceWindow(models.Model):
    """An open window, as long as its row exists. `node_id_text` empty is a window over the whole of ``/v1``.

    `purpose` completes "Mirbad is running …"; `until` is an estimate, not an end. `holder` opened it and may close it.
    """

    holder = models.CharField(max_length=80, unique=True)
    purpose = models.CharField(max_length=100)
    node_id_text = models.CharField(max_length=40, blank=True, default="")
    model_id_text = models.CharField(max_length=64, blank=True, default="")
    opened_at = models.DateTimeField(auto_now_add=True)
    until = models.DateTimeField()

    class Meta:
        ordering = ("opened_at", "id")
        constraints = [
            models.UniqueConstraint(fields=("node_id_text",), condition=~Q(node_id_text=""), name="window_per_node"),
        ]

    def __str__(self) -> str:
        return f"{self.purpose} ({self.node_id_text or 'everything'})"
