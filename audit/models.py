"""The audit line, and the state of the chain over the lines."""

from django.db import models

from audit.actions import RESULTS


class AuditLine(models.Model):
    """One action and its outcome. Written in the caller's transaction and never changed; see `audit.log.record`.

    `seq` and `digest` are its place in the hash chain; both are empty until `audit.seal` sets them, once.
    """

    time = models.DateTimeField(db_index=True)
    actor = models.CharField(max_length=80)
    person = models.CharField(max_length=150, blank=True, default="", help_text="Name of the user or of the token.")
    role = models.CharField(max_length=10, blank=True, default="")
    address = models.CharField(max_length=64, blank=True, default="", help_text="Address that the request came from.")
    action = models.CharField(max_length=60, db_index=True)
    node_id_text = models.CharField(max_length=40, blank=True, default="", db_index=True)
    model_id_text = models.CharField(max_length=64, blank=True, default="", db_index=True)
    operation_id_text = models.CharField(max_length=40, blank=True, default="")
    target = models.CharField(max_length=200, blank=True, default="")
    result = models.CharField(max_length=10, choices=[(r, r) for r in RESULTS])
    error_code = models.CharField(max_length=60, blank=True, default="")
    detail = models.CharField(max_length=2000, blank=True, default="")
    seq = models.BigIntegerField(null=True, blank=True, unique=True)
    digest = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        ordering = ("-id",)
        indexes = [models.Index(fields=("id",), condition=models.Q(seq__isnull=True), name="audit_line_unsealed")]

    def __str__(self) -> str:
        return f"{self.time:%Y-%m-%d %H:%M:%S} {self.actor} {self.action} {self.result}"


class ChainState(models.Model):
    """One row: the newest link, the link before the oldest kept line, and the last line known to be in the files."""

    singleton = models.BooleanField(default=True, unique=True)
    head_seq = models.BigIntegerField(default=0)
    head_digest = models.CharField(max_length=64)
    base_seq = models.BigIntegerField(default=0)
    base_digest = models.CharField(max_length=64)
    written_seq = models.BigIntegerField(default=0)
    head_peaks = models.JSONField(
        default=list, blank=True, help_text="Merkle tree of all lines; see `agent.common.merkle`."
    )
    base_peaks = models.JSONField(default=list, blank=True)

    class Meta:
        verbose_name_plural = "chain state"
        constraints = [models.CheckConstraint(condition=models.Q(singleton=True), name="one_chain_state")]

    def __str__(self) -> str:
        return f"{self.head_seq} links"


class LogKey(models.Model):
    """One row: the key that signs heads of the log, and nothing else (Ed25519)."""

    singleton = models.BooleanField(default=True, unique=True)
    public = models.CharField(max_length=64)
    key_sealed = models.BinaryField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(singleton=True), name="one_log_key")]

    def __str__(self) -> str:
        return self.public


class Checkpoint(models.Model):
    """A signed head of the log (`head`, as on the wire), the peaks of its tree, and the signatures of its witnesses.

    `witnesses` has, by node id, the node's key, its signature and the time.
    """

    size = models.BigIntegerField(unique=True)
    head = models.JSONField()
    peaks = models.JSONField()
    witnesses = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("-size",)

    def __str__(self) -> str:
        return f"{self.size} lines"
