"""One-time join tokens. Only a digest of the secret is kept."""

from django.db import models


class JoinToken(models.Model):
    """A right to enroll once. `id` is the public half of ``id.secret``; the answer is kept for a retry."""

    JOIN = "join"
    REKEY = "rekey"
    BOOTSTRAP = "bootstrap"

    id = models.CharField(primary_key=True, max_length=32)
    digest = models.CharField(max_length=64)
    purpose = models.CharField(max_length=12, choices=[(p, p) for p in (JOIN, REKEY, BOOTSTRAP)])
    node_id_text = models.CharField(max_length=40, db_index=True)
    display_name = models.CharField(max_length=100, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    used_by_spki = models.CharField(max_length=64, blank=True, default="")
    used_from = models.CharField(max_length=64, blank=True, default="")
    answer = models.JSONField(null=True, blank=True)
    created_by = models.CharField(max_length=80)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.purpose} token of {self.node_id_text}"


class TokenAttempt(models.Model):
    """Wrong attempts of one peer on one token id; the token itself is never locked for other peers."""

    token_id_text = models.CharField(max_length=64)
    peer = models.CharField(max_length=64)
    wrong = models.PositiveIntegerField(default=0)
    last_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=("token_id_text", "peer"), name="attempt_once_per_peer")]

    def __str__(self) -> str:
        return f"{self.peer} on {self.token_id_text}: {self.wrong}"
