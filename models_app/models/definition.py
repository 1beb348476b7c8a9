"""The definition of a model: its weights, its engine, and its settings."""

from django.db import models

from agent.wire.capability import Runtime

RUNTIMES = [(r, r) for r in ("vllm", "llama.cpp", "sim")]
ON_FAILURE, NEVER = "on-failure", "never"
RESTART_POLICIES = [(ON_FAILURE, "on failure"), (NEVER, "never")]
# Client libraries wait ten minutes for a response that is not streamed.
FIRST_BYTE_SECONDS = 600
DELIVERIES = [(d, d) for d in ("container", "process")]


class ModelDefinition(models.Model):
    """A model as an operator defines it. `served_names` are the names of ``/v1``; empty means the id alone.

    `env` is plain; the values of `secret_env_names` are sealed together in `secret_env_sealed` and never shown.
    """

    id = models.CharField(primary_key=True, max_length=64)
    display_name = models.CharField(max_length=100, blank=True, default="")
    runtime = models.CharField(max_length=12, choices=RUNTIMES)
    delivery = models.CharField(max_length=12, choices=DELIVERIES)
    image = models.CharField(max_length=255, blank=True, default="")
    image_digest = models.CharField(max_length=80, blank=True, default="")
    served_names = models.JSONField(default=list, blank=True)
    args = models.JSONField(default=list, blank=True)
    env = models.JSONField(default=dict, blank=True)
    secret_env_names = models.JSONField(default=list, blank=True)
    secret_env_sealed = models.BinaryField(null=True, blank=True)
    context_length = models.PositiveIntegerField(null=True, blank=True)
    gpu_memory_budget_bytes = models.BigIntegerField(null=True, blank=True)
    host_memory_budget_bytes = models.BigIntegerField(null=True, blank=True)
    start_timeout_seconds = models.PositiveIntegerField(default=1800)
    first_byte_timeout_seconds = models.PositiveIntegerField(default=FIRST_BYTE_SECONDS)
    idle_timeout_seconds = models.PositiveIntegerField(default=300)
    wait_when_starting_seconds = models.PositiveIntegerField(default=0)
    tags = models.JSONField(default=list, blank=True)
    auto_start = models.BooleanField(default=False)
    restart_policy = models.CharField(max_length=12, choices=RESTART_POLICIES, default=ON_FAILURE)
    keep_serving = models.BooleanField(default=False)
    allow_pickle = models.BooleanField(
        default=False, help_text="Weights may be Python pickles, which run what they hold."
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return self.id

    @property
    def name(self) -> str:
        """Return the name on pages."""
        return self.display_name or self.id

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names under which ``/v1`` serves the model; the first is the main one."""
        return tuple(self.served_names) or (self.id,)

    @property
    def reads_weights(self) -> bool:
        """Return whether a start needs the models root of its node; a query for the simulated engine alone."""
        if self.runtime != Runtime.SIM:
            return True
        return any(source.kind == ModelSource.HUGGING_FACE for source in self.sources.all())


class ModelSource(models.Model):
    """The source of weights. `folder` is below a node's models root, `file` a GGUF in it.

    `projector` is the file in it that reads pictures or sound for the GGUF: empty is the one that belongs to it by its
    name, "none" is no projector.

    A `huggingface` source names the repository and revision of the folder: a launch downloads the missing files.
    """

    FOLDER = "folder"
    HUGGING_FACE = "huggingface"

    model = models.ForeignKey(ModelDefinition, on_delete=models.CASCADE, related_name="sources")
    kind = models.CharField(max_length=12, choices=[(k, k) for k in (FOLDER, HUGGING_FACE)], default=FOLDER)
    folder = models.CharField(max_length=255, blank=True, default="")
    file = models.CharField(max_length=512, blank=True, default="")
    projector = models.CharField(max_length=512, blank=True, default="")
    repository = models.CharField(max_length=255, blank=True, default="")
    revision = models.CharField(max_length=80, blank=True, default="")
    position = models.PositiveSmallIntegerField(default=0)

    class Meta:
        ordering = ("model", "position")

    def __str__(self) -> str:
        return self.folder or self.repository
