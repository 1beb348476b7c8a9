"""A machine of the fleet, its GPUs, and the reasons for which it is degraded."""

from django.db import models

from mirbad.kernel.ids import new_uid
from nodes.states import APPROVED, LIFECYCLE, ONLINE, REACHABILITY


class NodeQuerySet(models.QuerySet["Node"]):
    """Queries over many nodes."""

    def not_revoked(self) -> "NodeQuerySet":
        """Return the nodes that are not revoked."""
        return self.exclude(lifecycle="revoked")

    def approved(self) -> "NodeQuerySet":
        """Return the nodes that the master may command."""
        return self.filter(lifecycle=APPROVED)

    def serving(self) -> "NodeQuerySet":
        """Return the approved nodes that are reachable now."""
        return self.approved().filter(reachability=ONLINE)


class Node(models.Model):
    """One machine. `lifecycle`, `draining` and settings are desired; `reachability` and `seen_*` are observed.

    Only `nodes.registry` and `nodes.enrollment` write desired columns; only `nodes.reachability` writes observed ones.
    """

    id = models.SlugField(primary_key=True, max_length=40)
    uid = models.UUIDField(unique=True, default=new_uid, editable=False)
    display_name = models.CharField(max_length=100, blank=True, default="")
    address = models.CharField(max_length=255, help_text="Address that the master connects to.")
    port = models.PositiveIntegerField(default=9443)
    lifecycle = models.CharField(max_length=16, choices=LIFECYCLE.choices, default="pending", db_index=True)
    draining = models.BooleanField(default=False)
    is_bootstrap = models.BooleanField(default=False)
    labels = models.JSONField(default=dict, blank=True)
    memory_reserve_bytes = models.BigIntegerField(null=True, blank=True)
    max_concurrent_starts = models.PositiveSmallIntegerField(null=True, blank=True)
    default_image = models.CharField(max_length=255, blank=True, default="", help_text="For vLLM.")
    default_image_digest = models.CharField(max_length=80, blank=True, default="")
    default_llama_image = models.CharField(max_length=255, blank=True, default="")
    default_llama_image_digest = models.CharField(max_length=80, blank=True, default="")
    machine = models.JSONField(default=dict, blank=True, help_text="The node's own description from its enrollment.")
    request_address = models.CharField(max_length=64, blank=True, default="")
    enrolled_at = models.DateTimeField(null=True, blank=True)
    approved_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    reachability = models.CharField(max_length=16, choices=REACHABILITY.choices, default="unknown")
    reachability_reason = models.CharField(max_length=500, blank=True, default="")
    last_seen_at = models.DateTimeField(null=True, blank=True)
    machine_id_hash = models.CharField(
        max_length=64, blank=True, default="", help_text="The machine that presented the node's key first."
    )
    boot_id = models.CharField(max_length=64, blank=True, default="")
    seq = models.BigIntegerField(default=0)
    capabilities_seq = models.BigIntegerField(default=-1)
    agent_version = models.CharField(max_length=40, blank=True, default="")
    protocol = models.PositiveSmallIntegerField(null=True, blank=True)
    held_epoch = models.BigIntegerField(null=True, blank=True)
    held_instance = models.CharField(max_length=64, blank=True, default="")
    refused_instance = models.CharField(
        max_length=64, blank=True, default="", help_text="The instance id of our claim that the node refused last."
    )
    takeover_id = models.CharField(
        max_length=40, blank=True, default="", help_text="The takeover that has not reached this node yet."
    )
    takeover_epoch = models.BigIntegerField(
        null=True, blank=True, help_text="Our epoch then; the node reconnects by itself only from below it."
    )
    cert_not_after = models.DateTimeField(null=True, blank=True)
    capabilities = models.JSONField(default=dict, blank=True, help_text="The last `Capabilities`, as on the wire.")
    host = models.JSONField(default=dict, blank=True, help_text="The last `HostStatus`, as on the wire.")
    warnings = models.JSONField(default=list, blank=True)
    status_at = models.DateTimeField(null=True, blank=True, help_text="Time of the last status.")
    engines = models.JSONField(
        default=list, blank=True, help_text="Engines in the last status: instance, model, state."
    )

    objects = NodeQuerySet.as_manager()

    class Meta:
        ordering = ("id",)
        constraints = [
            models.CheckConstraint(condition=models.Q(lifecycle__in=LIFECYCLE.states), name="node_lifecycle_known"),
            models.CheckConstraint(
                condition=models.Q(reachability__in=REACHABILITY.states), name="node_reachability_known"
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def name(self) -> str:
        """The name that pages show."""
        return self.display_name or self.id


class Gpu(models.Model):
    """A GPU of a node, by UUID; the index is a label. `seen` columns are observed, None is unknown."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpus")
    uuid = models.CharField(max_length=80)
    index = models.PositiveSmallIntegerField(null=True, blank=True)
    name = models.CharField(max_length=120, blank=True, default="")
    memory_bytes = models.BigIntegerField(null=True, blank=True)
    shares_host_memory = models.BooleanField(null=True, blank=True)
    reserve_bytes = models.BigIntegerField(null=True, blank=True)
    seen = models.JSONField(default=dict, blank=True, help_text="The last `GpuStatus`, as on the wire.")
    present = models.BooleanField(default=True)

    class Meta:
        ordering = ("node", "index", "uuid")
        constraints = [models.UniqueConstraint(fields=("node", "uuid"), name="gpu_once_per_node")]

    def __str__(self) -> str:
        return f"{self.node_id}/{self.uuid}"


class NodeCondition(models.Model):
    """A reason for which a node is Degraded. `source` owns its rows."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="conditions")
    source = models.CharField(max_length=40)
    code = models.CharField(max_length=40)
    subject = models.CharField(max_length=120, blank=True, default="")
    detail = models.CharField(max_length=500)
    since = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("node", "code", "subject")
        constraints = [
            models.UniqueConstraint(fields=("node", "source", "code", "subject"), name="condition_once_per_subject")
        ]

    def __str__(self) -> str:
        return f"{self.node_id}: {self.code}"


class NodeWitness(models.Model):
    """A node as a witness of the audit log, as it answered last."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, primary_key=True, related_name="witness")
    view = models.JSONField(default=dict, help_text="The last `WitnessView`, as on the wire.")
    agrees = models.BooleanField(default=True, help_text="The node holds a head of the present log.")
    at = models.DateTimeField()

    class Meta:
        verbose_name_plural = "node witnesses"

    def __str__(self) -> str:
        return f"{self.node_id} as a witness"
