"""A durable operation and what happened to it."""

from django.db import models

from jobs.states import LANES, OUTCOME
from mirbad.kernel.ids import new_operation_id


class Operation(models.Model):
    """Something that takes more than one request. The row is the truth; the task queue only rings.

    A worker takes a step by one UPDATE (fence + 1, lease), does one idempotent effect, and writes the next stage only
    while its fence still stands. `input` is frozen at creation. Steps are due when `next_run_at` has come and no lease
    holds.
    """

    id = models.CharField(primary_key=True, max_length=40, default=new_operation_id)
    kind = models.CharField(max_length=24)
    lane = models.CharField(max_length=12, choices=[(lane, lane) for lane in LANES])
    target_kind = models.CharField(max_length=12)
    target_id = models.CharField(max_length=64)
    node_id_text = models.CharField(max_length=40, blank=True, default="", db_index=True)
    model_id_text = models.CharField(max_length=64, blank=True, default="", db_index=True)
    actor = models.CharField(max_length=80)
    input = models.JSONField(default=dict)
    stage = models.CharField(max_length=40)
    stage_since = models.DateTimeField(null=True, blank=True)
    state = models.JSONField(default=dict, help_text="What the stages so far learnt and the later ones need.")
    progress = models.JSONField(default=dict, help_text="{text, doneBytes?, totalBytes?}")
    attempt = models.PositiveIntegerField(default=0)
    fence = models.PositiveIntegerField(default=0)
    lease_owner = models.CharField(max_length=80, blank=True, default="")
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    next_run_at = models.DateTimeField()
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=10, choices=OUTCOME.choices, default="open")
    result = models.JSONField(default=dict)
    error = models.JSONField(default=dict, help_text="{code, detail, lines?} of the last failure.")
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.UniqueConstraint(
                fields=("lane", "target_kind", "target_id"),
                condition=models.Q(finished_at__isnull=True),
                name="one_open_operation_per_lane_and_target",
            ),
            models.CheckConstraint(condition=models.Q(outcome__in=OUTCOME.states), name="operation_outcome_known"),
        ]
        indexes = [models.Index(fields=("finished_at", "next_run_at"), name="operation_due")]

    def __str__(self) -> str:
        return f"{self.kind} {self.target_id} ({self.stage})"


class OperationEvent(models.Model):
    """One line of an operation's timeline."""

    operation = models.ForeignKey(Operation, on_delete=models.CASCADE, related_name="events")
    time = models.DateTimeField()
    stage = models.CharField(max_length=40)
    text = models.CharField(max_length=1000)

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return self.text
