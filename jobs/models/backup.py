"""Backups that were made, and the destinations that they are copied to."""

from django.db import models

from jobs.states import OUTCOME


class BackupDestination(models.Model):
    """A place outside of the master that holds copies of backups, with its schedule and its retention.

    `settings` is one of `jobs.backup.destinations.settings`. `secret_sealed` is the password or the secret key;
    `passphrase_sealed` the passphrase of scheduled backups, which are made without secrets when it is absent.
    A slot of the schedule is due once the first time of `schedule` after `schedule_from` has passed.
    """

    name = models.CharField(max_length=60, unique=True)
    kind = models.CharField(max_length=8)
    settings = models.JSONField(default=dict)
    secret_sealed = models.BinaryField(null=True, blank=True)
    passphrase_sealed = models.BinaryField(null=True, blank=True)
    schedule = models.CharField(max_length=100, blank=True, default="", help_text="Cron expression in UTC; empty: off.")
    schedule_from = models.DateTimeField(null=True, blank=True)
    keep_count = models.PositiveIntegerField(null=True, blank=True)
    keep_days = models.PositiveIntegerField(null=True, blank=True)
    warn_after_hours = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    warn_from = models.DateTimeField(help_text="From when on the age counts while there is no backup.")

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Backup(models.Model):
    """One backup: a file in the data folder's ``backups``, and its copy when it has a destination.

    `outcome` is that of the operation that makes it; succeeded means read back, and copied where it should be.
    `passphrase_sealed` is there while that operation is open, and never longer.
    """

    name = models.CharField(max_length=80, unique=True)
    operation_id_text = models.CharField(max_length=40, db_index=True)
    destination = models.ForeignKey(
        BackupDestination, null=True, blank=True, on_delete=models.SET_NULL, related_name="backups"
    )
    destination_name = models.CharField(max_length=60, blank=True, default="")
    instance_id = models.CharField(max_length=64)
    with_secrets = models.BooleanField()
    scheduled = models.BooleanField(default=False)
    passphrase_sealed = models.BinaryField(null=True, blank=True)
    bytes = models.PositiveBigIntegerField(null=True, blank=True)
    sha256 = models.CharField(max_length=64, blank=True, default="")
    manifest = models.JSONField(default=dict, blank=True)
    made_at = models.DateTimeField(null=True, blank=True, help_text="The moment that the rows are of.")
    copied_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=10, choices=OUTCOME.choices, default="open")
    error = models.JSONField(default=dict, blank=True, help_text="{code, detail} of a failure.")
    actor = models.CharField(max_length=80)
    person = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        constraints = [
            models.CheckConstraint(condition=models.Q(outcome__in=OUTCOME.states), name="backup_outcome_known"),
        ]

    def __str__(self) -> str:
        return self.name
