"""The audit line."""

from django.db import models


class AuditLine(models.Model):
    """One action and its outcome. Written in the caller's transaction, never changed; see `audit.log.record`."""

    RESULTS = ("succeeded", "failed", "refused", "accepted", "unknown")

    time = models.DateTimeField(db_index=True)
    actor = models.CharField(max_length=80)
    action = models.CharField(max_length=60, db_index=True)
    node_id_text = models.CharField(max_length=40, blank=True, default="", db_index=True)
    model_id_text = models.CharField(max_length=64, blank=True, default="", db_index=True)
    operation_id_text = models.CharField(max_length=40, blank=True, default="")
    target = models.CharField(max_length=200, blank=True, default="")
    result = models.CharField(max_length=10, choices=[(r, r) for r in RESULTS])
    error_code = models.CharField(max_length=60, blank=True, default="")
    detail = models.CharField(max_length=2000, blank=True, default="")

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.time:%Y-%m-%d %H:%M:%S} {self.actor} {self.action} {self.result}"
