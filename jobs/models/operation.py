"""A durable operation and its timeline."""

from django.db import models

from jobs.states import CONCURRENCY_GROUPS, OUTCOME
from mirbad.kernel.actor import Actor
from mirbad.kernel.ids import new_operation_id


class Operation(models.Model):
    """A unit of work that takes more than one request. The row is the truth; the task queue only signals.

    A worker claims a step by one UPDATE (fence + 1, lease), does one idempotent effect, and writes the next stage only
    while the fence is still its own. `input` is frozen at creation. A step is due once `next_run_at` has passed and no
    lease is held.
    """

    id = models.CharField(primary_key=True, max_length=40, default=new_operation_id)
    kind = models.CharField(max_length=24)
    concurrency_group = models.CharField(max_length=12, choices=[(group, group) for group in CONCURRENCY_GROUPS])
    target_kind = models.CharField(max_length=12)
    target_id = models.CharField(max_length=64)
    node_id_text = models.CharField(max_length=40, blank=True, default="", db_index=True)
    model_id_text = models.CharField(max_length=64, blank=True, default="", db_index=True)
    actor = models.CharField(max_length=80)
    person = models.CharField(max_length=150, blank=True, default="", help_text="Name of the user or of the token.")
    role = models.CharField(max_length=10, blank=True, default="")
    address = models.CharField(max_length=64, blank=True, default="", help_text="Address that the request came from.")
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
                fields=("concurrency_group", "target_kind", "target_id"),
                condition=models.Q(finished_at__isnull=True),
                name="one_open_operation_per_group_and_target",
            ),
            models.CheckConstraint(condition=models.Q(outcome__in=OUTCOME.states), name="operation_outcome_known"),
        ]
        indexes = [models.Index(fields=("finished_at", "next_run_at"), name="operation_due")]

    def __str__(self) -> str:
        return f"{self.kind} {self.target_id} ({self.stage})"

    @property
    def requested_by(self) -> Actor:
        """The actor of the request, with person, role and address."""
        return Actor(self.actor, self.person, self.role, self.address)


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
