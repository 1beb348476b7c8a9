"""Measurements of nodes over time: raw, by the minute, by the hour."""

from django.db import models


class TelemetrySample(models.Model):
    """Measurements of one node in one interval that began at `at`.

    `step` is 0 for a raw status (the first of each interval), else the length of the interval in seconds, over which
    `samples` statuses were averaged. `data` is created and read by `nodes.telemetry.values` alone. An interval without
    a status has no row.
    """

    RAW = 0
    MINUTE = 60
    HOUR = 3600

    node_id_text = models.CharField(max_length=40)
    step = models.PositiveSmallIntegerField()
    at = models.DateTimeField()
    samples = models.PositiveIntegerField(default=1)
    data = models.JSONField(default=dict)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=("node_id_text", "step", "at"), name="sample_once_per_node_and_time")
        ]
        indexes = [models.Index(fields=("step", "at"), name="sample_by_time")]

    def __str__(self) -> str:
        return f"{self.node_id_text} at {self.at:%Y-%m-%d %H:%M:%S} by {self.step} s"


class TelemetryProgress(models.Model):
    """The moment up to which samples were averaged into intervals of `step` seconds; all before `until` is done."""

    step = models.PositiveSmallIntegerField(primary_key=True)
    until = models.DateTimeField()

    class Meta:
        verbose_name_plural = "telemetry progress"

    def __str__(self) -> str:
        return f"{self.step} s until {self.until:%Y-%m-%d %H:%M}"
