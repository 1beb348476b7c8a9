"""Keys of ``/v1``."""

from django.db import models


class ApiKey(models.Model):
    """A key ``ssk_…``; only its SHA-256 is stored. `allowed_models` empty means all, a limit of None is none.

    After a rotation the old secret (`previous_digest`) may stay valid until `previous_until`.
    """

    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12)
    digest = models.CharField(max_length=64, unique=True)
    allowed_models = models.JSONField(default=list, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=80)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveIntegerField(null=True, blank=True)
    max_parallel = models.PositiveIntegerField(null=True, blank=True)
    rotated_at = models.DateTimeField(null=True, blank=True)
    previous_digest = models.CharField(max_length=64, blank=True, default="", db_index=True)
    previous_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
