"""Admin API tokens, and counters of log-in attempts. People are Django users; roles are groups of them."""

from django.conf import settings
from django.db import models


class AdminToken(models.Model):
    """A token ``mbt_…`` for scripts on ``/api``; only its SHA-256 is kept. Its rights are those of `role`."""

    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12)
    digest = models.CharField(max_length=64, unique=True)
    role = models.CharField(max_length=10, choices=[(r, r) for r in ("owner", "operator", "viewer")])
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class LoginCounter(models.Model):
    """The attempts to log in from one address or browser, or under one name; see `mirbad.accounts.attempts`.

    `attempts` counts until `until`. `refused` counts the posts of the present lock-out.
    """

    ADDRESS, NAME, DEVICE = "address", "name", "device"

    key = models.CharField(max_length=64, primary_key=True)
    scope = models.CharField(max_length=10, choices=[(s, s) for s in (ADDRESS, NAME, DEVICE)])
    subject = models.CharField(max_length=150)
    attempts = models.PositiveIntegerField(default=0)
    refused = models.PositiveIntegerField(default=0)
    until = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.attempts} attempts of {self.scope} {self.subject}"
