"""Usage of models: sums by key, model and day."""

from django.db import models


class UsageDay(models.Model):
    """One key's usage of one model on one UTC day. `key_number` 0 is Mirbad's own pages.

    `requests` were sent to an engine or would have been; `failed` of them got no complete response, `unreported` of
    them a response without token counts, so the sums of tokens are known to exclude those.
    """

    key_number = models.BigIntegerField()
    model_id_text = models.CharField(max_length=64)
    day = models.DateField(db_index=True)
    requests = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    unreported = models.BigIntegerField(default=0)
    prompt_tokens = models.BigIntegerField(default=0)
    completion_tokens = models.BigIntegerField(default=0)

    class Meta:
        ordering = ("-day", "key_number", "model_id_text")
        constraints = [
            models.UniqueConstraint(fields=("key_number", "model_id_text", "day"), name="usage_once_per_day"),
        ]

    def __str__(self) -> str:
        return f"{self.day} {self.key_number} {self.model_id_text}"
