"""The master's certificate authority and the identity under which it commands agents."""

from django.db import models


class Authority(models.Model):
    """A CA certificate and its sealed key.

    Slots: current signs; next and previous are trusted beside it during a rotation; withdrawn is still accepted from
    nodes that have not changed yet, but given to none; retired is a certificate without its key, kept to identify the
    nodes that were left behind.
    """

    CURRENT = "current"
    NEXT = "next"
    PREVIOUS = "previous"
    WITHDRAWN = "withdrawn"
    RETIRED = "retired"

    slot = models.CharField(
        max_length=10,
        unique=True,
        choices=[(slot, slot) for slot in ("current", "next", "previous", "withdrawn", "retired")],
    )
    cert_pem = models.TextField()
    key_sealed = models.BinaryField(null=True)
    sha256 = models.CharField(max_length=64, help_text="SHA-256 of the certificate's DER, lower hex.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "authorities"

    def __str__(self) -> str:
        return f"{self.slot} CA"


class MasterIdentity(models.Model):
    """One row: epoch and instance id of this master, its client key for agents, its enroll certificate."""

    singleton = models.BooleanField(default=True, unique=True)
    epoch = models.BigIntegerField(default=1)
    instance_id = models.CharField(max_length=64)
    bound_to = models.CharField(max_length=64, help_text="Digest of machine id and data folder (a copy differs).")
    client_cert_pem = models.TextField()
    client_key_sealed = models.BinaryField()
    client_spki = models.CharField(max_length=64)
    next_spki = models.CharField(max_length=64, blank=True, default="")
    enroll_cert_pem = models.TextField()
    enroll_key_sealed = models.BinaryField()
    fenced_reason = models.CharField(max_length=300, blank=True, default="")
    stood_down_at = models.DateTimeField(
        null=True, blank=True, help_text="Fenced by an owner since then; only an owner takes over again."
    )
    claimed_by = models.CharField(
        max_length=40, blank=True, default="", help_text="The takeover or continuation that created this claim."
    )
    takeover_id = models.CharField(max_length=40, blank=True, default="", help_text="The last takeover.")
    takeovers_done = models.JSONField(default=list, blank=True, help_text="Ids of one-time takeovers that completed.")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "master identity"
        constraints = [models.CheckConstraint(condition=models.Q(singleton=True), name="one_master_identity")]

    def __str__(self) -> str:
        return f"epoch {self.epoch}"
