"""The running set of each node, and engines without a placement."""

from django.db import models

from models_app.models.placement import Placement


class RunningIntent(models.Model):
    """A placement in the running set of its node, as of one boot of one machine.

    `seen` was observed starting or ready in that boot: after another boot of the same machine it is started again. The
    other causes are started whatever the boot: `asked` is a start that the node could not receive, `autostart` a model
    that starts with the master. Written by `models_app.intents`.
    """

    SEEN, ASKED, AUTOSTART = "seen", "asked", "autostart"
    CAUSES = (SEEN, ASKED, AUTOSTART)

    placement = models.OneToOneField(Placement, on_delete=models.CASCADE, primary_key=True, related_name="intent")
    node_uid = models.CharField(max_length=40)
    boot_id = models.CharField(max_length=64, blank=True, default="")
    cause = models.CharField(max_length=12, choices=[(cause, cause) for cause in CAUSES])
    since = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.placement_id} ({self.cause})"


class OrphanInstance(models.Model):
    """An engine of ours on a node where its model has no such placement: alive, or the record of an ended one.

    Written by `models_app.orphans` alone, and only from a newer `(boot_id, seq)`.
    """

    node_id_text = models.CharField(max_length=40)
    instance_id = models.CharField(max_length=80)
    model_id_text = models.CharField(max_length=64)
    operation_id_text = models.CharField(max_length=160, blank=True, default="")
    state = models.CharField(max_length=12)
    boot_id = models.CharField(max_length=64)
    seq = models.BigIntegerField()
    since = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("node_id_text", "instance_id")
        constraints = [models.UniqueConstraint(fields=("node_id_text", "instance_id"), name="orphan_once_per_node")]

    def __str__(self) -> str:
        return f"{self.model_id_text} on {self.node_id_text}"
