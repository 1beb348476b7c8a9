"""The replicas of a model: view-models of where it stands, and the pages to add one and to remove one."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from agent.wire.capability import Capabilities, GpuCapability
from mirbad.accounts import actors
from mirbad.kernel.errors import MirbadError, NotFound
from mirbad.kernel.roles import OPERATOR
from mirbad.web import parts
from mirbad.web.access import require_role
from mirbad.web.fragments import done, page_or_fragment, perform, refused
from mirbad.web.parts import Badge
from models_app import queries
from models_app.models import ModelDefinition, Placement
from models_app.pages import badges
from models_app.placement import apply, feasible, reconcile, shared
from models_app.states import FAILED, READY, RUNNING, STARTING, STOPPED, UNHEALTHY, UNKNOWN
from nodes.models import Node

MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class ShardRow:
    """One placement of a replica."""

    rank: int
    node_id: str
    node_name: str
    badge: Badge
    gpus: str
    memory: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """One replica at a glance."""

    id: UUID
    badge: Badge
    reasons: tuple[str, ...]
    shards: tuple[ShardRow, ...]
    wanted: int
    ready: int
    state: str
    wanted_running: bool
    routed: bool

    @property
    def several(self) -> bool:
        """Whether it needs more than one node."""
        return self.wanted > 1

    @property
    def may_start(self) -> bool:
        """Whether a start makes sense now."""
        return self.routed and self.state not in (READY, STARTING, UNHEALTHY)

    @property
    def may_stop(self) -> bool:
        """Whether there is anything to stop."""
        return self.routed and (self.wanted_running or self.state in (READY, STARTING, UNHEALTHY, UNKNOWN))

    @property
    def may_remove(self) -> bool:
        """Whether it is stopped, as far as is known."""
        return self.routed and not self.wanted_running and self.state in (STOPPED, FAILED)


def rows(model: ModelDefinition, nodes: Mapping[str, Node]) -> tuple[ReplicaRow, ...]:
    """The replicas of a model whose placements are prefetched; `nodes` are those that it stands on, by id."""
    return tuple(_row(replica, nodes) for replica in queries.replicas_of(model))


def _row(replica: queries.Replica, nodes: Mapping[str, Node]) -> ReplicaRow:
    shown = queries.shown_replica_state(replica)
    return ReplicaRow(
        id=replica.id,
        badge=badges.of(shown.name, wanted_running=replica.desired == RUNNING),
        reasons=shown.reasons,
        shards=tuple(_shard(placement, nodes) for placement in replica.placements),
        wanted=replica.wanted,
        ready=replica.ready,
        state=shown.name,
        wanted_running=replica.desired == RUNNING,
        routed=replica.routed,
    )


def _shard(placement: Placement, nodes: Mapping[str, Node]) -> ShardRow:
    node = nodes.get(placement.node_id_text)
    return ShardRow(
        rank=placement.shard,
        node_id=placement.node_id_text,
        node_name=node.name if node else placement.node_id_text,
        badge=badges.of(placement.observed, wanted_running=placement.desired == RUNNING),
        gpus=parts.plural(len(placement.gpu_uuids), "GPU") if placement.gpu_uuids else "",
        memory=parts.size(placement.observed_view.get("memoryBytes")),
        reason=placement.observed_reason,
    )


@dataclass(frozen=True, slots=True)
class Seat:
    """A node that may take a shard, with its GPUs and the fabrics that it can use."""

    id: str
    name: str
    fabrics: tuple[str, ...]
    gpus: tuple[tuple[str, str], ...]
    problem: str


def seats(model: ModelDefinition) -> tuple[Seat, ...]:
    """Approved nodes on which the model does not stand yet. One query beside the model's own."""
    taken = {placement.node_id_text for placement in model.placements.all()}
    found = []
    for node in Node.objects.approved().exclude(pk__in=taken).order_by("pk")[:MOST_SHOWN]:
        capabilities = reconcile.capabilities_of(node)
        gpus = tuple((gpu.uuid, _gpu_words(gpu)) for gpu in (capabilities.gpus if capabilities else ()))
        fabrics = tuple(shared.fabrics_of(capabilities))
        found.append(Seat(node.pk, node.name, fabrics, gpus, _problem(model, node, capabilities)))
    return tuple(found)


def _gpu_words(gpu: GpuCapability) -> str:
    label = "GPU" if gpu.index is None else f"GPU {gpu.index}"
    return f"{label} · {gpu.name or 'name not reported'} · {parts.size(gpu.memory_bytes)}"


def _problem(model: ModelDefinition, node: Node, capabilities: Capabilities | None) -> str:
    """Why the node cannot take a replica of the model now; empty when it may."""
    if node.draining:
        return "It is draining: undrain it first."
    if capabilities is None:
        return "It has not reported what it can run yet."
    problem = feasible.runtime_problem(model.runtime, model.delivery, node.pk, capabilities)
    return problem.message if problem else ""


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def add(request: HttpRequest, model_id: str) -> HttpResponse:
    """Choose one node for another replica, or several that serve as one."""
    try:
        model = queries.one_model(model_id)
    except NotFound as error:
        raise Http404(error.detail) from error
    if request.method == "POST":
        chosen = [node_id for node_id in request.POST.getlist("nodes") if node_id]
        wanted = [(node_id, request.POST.getlist(f"gpus-{node_id}")) for node_id in chosen]
        try:
            apply.add_replica(model_id, wanted, actors.of(request))
        except MirbadError as error:
            return refused(request, error, to=reverse("models:replica-add", args=[model_id]))
        words = f"{model_id} has a replica on {', '.join(chosen)}. Start it when you like."
        return done(request, words, to=_page(model_id), go=True)
    context = {"model": model, "seats": seats(model), "together": model.runtime in shared.MULTI_NODE_RUNTIMES}
    return page_or_fragment(request, "models/replica_new.html", "models/_replica_new.html", context)


@require_POST
@require_role(OPERATOR)
def remove(request: HttpRequest, model_id: str, replica: UUID) -> HttpResponse:
    """Take a stopped replica off its nodes."""
    actor = actors.of(request)
    return perform(
        request,
        lambda: apply.remove_replica(model_id, replica, actor),
        "The replica is removed. Its weights stay on the node.",
        to=_page(model_id),
    )


def _page(model_id: str) -> str:
    return reverse("models:detail", args=[model_id])
