"""A rotation of the fleet's CA, and the progress of each node in it."""

from django.db import models

from nodes.models.node import Node
from nodes.states import CA_ROTATION


class CaRotation(models.Model):
    """One rotation, open while `finished_at` is empty. `id` is that of the operation that drives it.

    The two sides are the CA before the rotation (`old_`) and its replacement (`new_`). Keys are sealed and are deleted
    at the end of the rotation; certificates stay.
    """

    id = models.CharField(primary_key=True, max_length=40)
    stage = models.CharField(max_length=16, choices=CA_ROTATION.choices, default="Started")
    stage_since = models.DateTimeField()
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    close_asked_at = models.DateTimeField(
        null=True, blank=True, help_text="From then on a node that does not respond is left behind."
    )
    one_at_a_time = models.BooleanField(default=True, editable=False)

    old_sha256 = models.CharField(max_length=64)
    new_sha256 = models.CharField(max_length=64)
    old_client_pem = models.TextField(help_text="The master's certificate for agents before the rotation.")
    old_client_key_sealed = models.BinaryField(null=True)
    old_client_spki = models.CharField(max_length=64)
    new_client_pem = models.TextField(help_text="Under the new CA, followed by the cross certificate.")
    new_client_key_sealed = models.BinaryField(null=True)
    new_client_spki = models.CharField(max_length=64)
    old_enroll_pem = models.TextField()
    old_enroll_key_sealed = models.BinaryField(null=True)
    new_enroll_pem = models.TextField()
    new_enroll_key_sealed = models.BinaryField(null=True)
    probe_old_pem = models.TextField(help_text="The new client key under the old CA: a closed node refuses it.")
    probe_new_pem = models.TextField(help_text="The old client key under the new CA: a node rolled back refuses it.")

    class Meta:
        ordering = ("-started_at",)
        constraints = [
            models.UniqueConstraint(
                fields=("one_at_a_time",),
                condition=models.Q(finished_at__isnull=True),
                name="one_open_ca_rotation",
            ),
            models.CheckConstraint(condition=models.Q(stage__in=CA_ROTATION.states), name="ca_rotation_stage_known"),
        ]

    def __str__(self) -> str:
        return f"{self.id}: {self.stage}"


class CaRotationNode(models.Model):
    """Observations of one node in one rotation. They count only for the key that they were made with (`spki`)."""

    rotation = models.ForeignKey(CaRotation, on_delete=models.CASCADE, related_name="nodes")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="ca_rotations")
    spki = models.CharField(max_length=64, blank=True, default="")
    done_stage = models.CharField(max_length=16, blank=True, default="", help_text="The last stage it has passed.")
    told = models.BooleanField(default=False, help_text="It was asked to trust another CA since the start.")
    tried_at = models.DateTimeField(null=True, blank=True)
    problem = models.CharField(max_length=300, blank=True, default="")
    outcome = models.CharField(
        max_length=12, blank=True, default="", help_text="At the end: stranded, or leftover (trusts a former CA, too)."
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=("rotation", "node"), name="node_once_per_ca_rotation")]

    def __str__(self) -> str:
        return f"{self.node_id}: {self.done_stage or 'not yet'}"
