"""Placements of models on nodes."""

from django.db import models

from mirbad.kernel.ids import new_uid
from models_app.models.definition import ModelDefinition
from models_app.states import DESIRED, OBSERVED


class Placement(models.Model):
    """One instance of a model on one node. The id is the instance id on the agent.

    A replica is one placement, or placements on several nodes that share `replica` and serve together: shard 0 responds
    once all `shards` are ready. The gateway sends requests only to `routed` placements: a move brings its target up
    unrouted and switches both rows with one write.

    `desired` is written by `models_app.placement.apply` and the requests of `jobs`; `observed*` only by
    `models_app.running`, and only from a newer `(observed_boot, observed_seq)`.
    """

    id = models.UUIDField(primary_key=True, default=new_uid, editable=False)
    model = models.ForeignKey(ModelDefinition, on_delete=models.PROTECT, related_name="placements")
    node_id_text = models.CharField(max_length=40, db_index=True)
    gpu_uuids = models.JSONField(default=list, blank=True)
    generation = models.PositiveIntegerField(default=1)
    desired = models.CharField(max_length=10, choices=DESIRED.choices, default="stopped")
    desired_config_hash = models.CharField(max_length=64, blank=True, default="")
    promised = models.JSONField(
        default=dict,
        blank=True,
        help_text='Bytes that its last start takes, by GPU UUID and under "" of the host; unknown parts are absent.',
    )
    confirmed_config_hash = models.CharField(
        max_length=64, blank=True, default="", help_text="The configuration that a person started in spite of its fit."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    replica = models.UUIDField(default=new_uid, db_index=True, help_text="The same for every shard of one replica.")
    shard = models.PositiveSmallIntegerField(default=0, help_text="Its rank in the replica, from 0.")
    shards = models.PositiveSmallIntegerField(default=1, help_text="How many the replica must have.")
    routed = models.BooleanField(default=True, help_text="Whether the gateway sends requests there.")
    exits = models.PositiveIntegerField(default=0, help_text="How often its engine ended by itself.")
    restart_at = models.DateTimeField(null=True, blank=True, help_text="Time of the next automatic start.")
    halted = models.CharField(max_length=500, blank=True, default="", help_text="Why the master stopped it.")
    start_seconds = models.FloatField(null=True, blank=True, help_text="Measured time from launch to ready.")

    observed = models.CharField(max_length=10, choices=OBSERVED.choices, default="unknown")
    observed_boot = models.CharField(max_length=64, blank=True, default="")
    observed_seq = models.BigIntegerField(default=-1)
    observed_at = models.DateTimeField(null=True, blank=True)
    observed_generation = models.PositiveIntegerField(null=True, blank=True)
    observed_config_hash = models.CharField(max_length=64, blank=True, default="")
    observed_reason = models.CharField(max_length=2000, blank=True, default="")
    observed_view = models.JSONField(default=dict, blank=True, help_text="The last `InstanceView`, as on the wire.")

    class Meta:
        ordering = ("model", "node_id_text")
        constraints = [
            models.UniqueConstraint(fields=("model", "node_id_text"), name="placement_once_per_node"),
            models.UniqueConstraint(fields=("replica", "shard"), name="placement_once_per_shard"),
            models.CheckConstraint(
                condition=models.Q(shard__lt=models.F("shards")), name="placement_shard_within_its_replica"
            ),
            models.CheckConstraint(condition=models.Q(desired__in=DESIRED.states), name="placement_desired_known"),
            models.CheckConstraint(condition=models.Q(observed__in=OBSERVED.states), name="placement_observed_known"),
        ]

    def __str__(self) -> str:
        return f"{self.model_id} on {self.node_id_text}"
