"""A machine of the fleet, its GPUs, and the reasons for which it is not entirely well."""

from django.db import models

from mirbad.kernel.ids import new_uid
from nodes.states import APPROVED, LIFECYCLE, ONLINE, REACHABILITY


class NodeQuerySet(models.QuerySet["Node"]):
    """Questions asked of many nodes."""

    def not_revoked(self) -> "NodeQuerySet":
        """Nodes that an operator still knows of."""
        return self.exclude(lifecycle="revoked")

    def approved(self) -> "NodeQuerySet":
        """Nodes that the master may command."""
        return self.filter(lifecycle=APPROVED)

    def serving(self) -> "NodeQuerySet":
        """Approved nodes that answer now."""
        return self.approved().filter(reachability=ONLINE)


class Node(models.Model):
    """One machine. `lifecycle`, `draining` and settings are wanted; `reachability` and `seen_*` are observed.

    Only `nodes.registry` and `nodes.enrollment` write what is wanted; only `nodes.reachability` writes what is seen.
    """

    id = models.SlugField(primary_key=True, max_length=40)
    uid = models.UUIDField(unique=True, default=new_uid, editable=False)
    display_name = models.CharField(max_length=100, blank=True, default="")
    address = models.CharField(max_length=255, help_text="Where the master dials the agent.")
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
    machine = models.JSONField(default=dict, blank=True, help_text="What the node said of itself when it enrolled.")
    request_address = models.CharField(max_length=64, blank=True, default="")
    enrolled_at = models.DateTimeField(null=True, blank=True)
    approved_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    reachability = models.CharField(max_length=16, choices=REACHABILITY.choices, default="unknown")
    reachability_reason = models.CharField(max_length=500, blank=True, default="")
    last_seen_at = models.DateTimeField(null=True, blank=True)
    machine_id_hash = models.CharField(
        max_length=64, blank=True, default="", help_text="The machine that showed the node's key first."
    )
    boot_id = models.CharField(max_length=64, blank=True, default="")
    seq = models.BigIntegerField(default=0)
    capabilities_seq = models.BigIntegerField(default=-1)
    agent_version = models.CharField(max_length=40, blank=True, default="")
    protocol = models.PositiveSmallIntegerField(null=True, blank=True)
    held_epoch = models.BigIntegerField(null=True, blank=True)
    held_instance = models.CharField(max_length=64, blank=True, default="")
    takeover_id = models.CharField(
        max_length=40, blank=True, default="", help_text="The takeover after which this node is still not ours."
    )
    takeover_epoch = models.BigIntegerField(
        null=True, blank=True, help_text="Our epoch then; the node reconnects by itself only from below it."
    )
    cert_not_after = models.DateTimeField(null=True, blank=True)
    capabilities = models.JSONField(default=dict, blank=True, help_text="The last `Capabilities`, as on the wire.")
    host = models.JSONField(default=dict, blank=True, help_text="The last `HostStatus`, as on the wire.")
    warnings = models.JSONField(default=list, blank=True)
    status_at = models.DateTimeField(null=True, blank=True, help_text="When the last status came.")
    engines = models.JSONField(
        default=list, blank=True, help_text="Engines that the last status told of: instance, model, state."
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
        """What pages call the node."""
        return self.display_name or self.id


class Gpu(models.Model):
    """A GPU of a node, by UUID; the index is a label. `seen` fields are observed, None is unknown."""

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
    """A reason for which a node reads Degraded. Written by whoever knows; `source` owns its rows."""

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
