"""Keys by which the master knows nodes."""

from django.db import models

from nodes.models.node import Node


class NodePin(models.Model):
    """The SPKI SHA-256 (lower hex) that a node must present. Slot pending until approval, then current."""

    PENDING = "pending"
    CURRENT = "current"
    NEXT = "next"

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="pins")
    slot = models.CharField(max_length=8, choices=[(s, s) for s in (PENDING, CURRENT, NEXT)])
    spki_sha256 = models.CharField(max_length=64)
    cert_pem = models.TextField(blank=True, default="")
    cert_not_after = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("node", "slot"), name="pin_slot_once_per_node"),
            models.UniqueConstraint(fields=("spki_sha256",), name="pin_names_one_node"),
        ]

    def __str__(self) -> str:
        return f"{self.node_id} {self.slot}"


class RevokedKey(models.Model):
    """A key that is revoked for good."""

    spki_sha256 = models.CharField(max_length=64, primary_key=True)
    node_id_text = models.CharField(max_length=40)
    revoked_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.spki_sha256
