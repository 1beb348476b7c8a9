"""Ends of engines that nobody requested."""

from django.db import models


class EngineExit(models.Model):
    """An engine that ended by itself, or was lost with its machine or with Docker. Rows outlive their placement.

    `run` is unique to a launch of the placement: one end of each is recorded. `at` is the master's time, `exited_at`
    the node's, as reported. `requests` are those that the engine had, each ``{requestId, keyId}``.
    """

    placement_id_text = models.CharField(max_length=36)
    run = models.CharField(max_length=200)
    model_id_text = models.CharField(max_length=64)
    node_id_text = models.CharField(max_length=40)
    at = models.DateTimeField()
    exited_at = models.CharField(max_length=40, blank=True, default="")
    code = models.CharField(max_length=60, blank=True, default="")
    reason = models.CharField(max_length=2000, blank=True, default="")
    exit_code = models.IntegerField(null=True, blank=True)
    signal = models.CharField(max_length=20, blank=True, default="")
    was_ready = models.BooleanField(default=False)
    last_lines = models.JSONField(default=list, blank=True)
    requests = models.JSONField(default=list, blank=True)

    class Meta:
        ordering = ("-at", "-pk")
        constraints = [
            models.UniqueConstraint(fields=("placement_id_text", "run"), name="engine_exit_once_per_run"),
        ]
        indexes = [models.Index(fields=("model_id_text", "-at"), name="engine_exit_by_model")]

    def __str__(self) -> str:
        return f"{self.model_id_text} on {self.node_id_text}: {self.reason}"
