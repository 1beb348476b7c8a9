"""Where a model stands: its move to another node, followed live, and its way off every node."""

from dataclasses import dataclass
from datetime import timedelta

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from audit import log as audit_log
from jobs import moves, requests, unplacing
from jobs.kinds.move import STARTING_TARGET, TARGET_READY
from jobs.pages.contexts import OperationRow, row
from mirbad.accounts import actors
from mirbad.accounts.permissions import require_reauthentication
from mirbad.kernel import clock
from mirbad.kernel.errors import MirbadError, NotFound
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web import parts
from mirbad.web.access import require_role
from mirbad.web.fragments import done, page_or_fragment, perform, private, refused
from models_app import queries
from models_app.models import ModelDefinition, ModelSource
from models_app.placement import apply, feasible
from models_app.states import STOPPED
from nodes import queries as node_queries
from nodes.errors import ConfirmationRequired
from nodes.models import Node
from nodes.states import ONLINE

MODES = (
    ("auto", "Without a pause, if it can be", "What runs is started there first; requests never fail."),
    ("stop-first", "Stop first", "It is stopped here before it starts there. For when both cannot run at once."),
)
_SHOWN_FOR = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Target:
    """A node to move to; `problem` says why it cannot be chosen, "" when it can. `gpus` are (UUID, words)."""

    id: str
    name: str
    problem: str
    gpus: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MoveState:
    """A move as a page shows it."""

    record: moves.MoveRecord
    operation: OperationRow
    lines: tuple[str, ...]

    @property
    def starts(self) -> bool:
        """Whether an engine is coming up on the target, so that its log is worth reading."""
        return self.record.open and self.record.stage in (STARTING_TARGET, TARGET_READY)

    @property
    def memory_refused(self) -> bool:
        """Whether the target's check of memory is what kept it from starting."""
        return self.record.start.get("code") == "admission_refused"


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def move(request: HttpRequest, model_id: str) -> HttpResponse:
    """Ask where to and how, then follow it; closing the page stops nothing."""
    model = _model(model_id)
    if request.method == "POST":
        return _begin(request, model_id)
    record = moves.record(model_id)
    again = "again" in request.GET
    if record is not None and (record.open or (_is_fresh(record) and not again)):
        return page_or_fragment(request, "jobs/move.html", "jobs/_move_state.html", _following(model, record))
    standing = queries.placements_of(model)
    if any(source.kind != ModelSource.HUGGING_FACE for source in model.sources.all()):
        context = {"model": model, "folder_only": True}
    else:
        nodes = _targets(model)
        context = {
            "model": model,
            "standing": standing,
            "source": _source(model, request.GET.get("source", "")),
            "targets": nodes,
            "chosen": next((node.id for node in nodes if not node.problem), ""),
            "modes": MODES,
        }
    return page_or_fragment(request, "jobs/move.html", "jobs/_move_form.html", context)


@require_GET
@require_role(VIEWER)
def state(request: HttpRequest, model_id: str) -> HttpResponse:
    """How the newest move stands; the part that the page reads again."""
    record = moves.record(model_id)
    if record is None:
        raise Http404(model_id)
    return private(render(request, "jobs/_move_state.html", _following(_model(model_id), record)))


@require_POST
@require_role(OPERATOR)
def cancel(request: HttpRequest, model_id: str) -> HttpResponse:
    """Undo the move, while there is a way back."""
    actor = actors.of(request)
    words = "The move was asked to end; what it did is undone."
    return perform(request, lambda: moves.cancel(model_id, actor), words, to=_here(model_id))


@require_POST
@require_role(OPERATOR)
def force_commit(request: HttpRequest, model_id: str) -> HttpResponse:
    """Give up the source."""
    actor, confirm = actors.of(request), request.POST.get("confirm", "")
    return perform(
        request,
        lambda: moves.force_commit(model_id, confirm, actor, sure=lambda: require_reauthentication(request)),
        "The move goes on without it.",
        to=_here(model_id),
    )


@require_POST
@require_role(OPERATOR)
def start_anyway(request: HttpRequest, model_id: str) -> HttpResponse:
    """Start it where it stands now, past the node's check of memory."""
    actor = actors.of(request)
    to = reverse("models:detail", args=[model_id])
    words = f"{model_id} is starting."
    return perform(request, lambda: requests.start(model_id, actor, force=True), words, to=to, go=True)


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def unplace(request: HttpRequest, model_id: str) -> HttpResponse:
    """Say what it leads to, ask for the model's id when it runs, and take it off its nodes."""
    model = _model(model_id)
    standing = queries.placements_of(model)
    runs = any(placement.observed != STOPPED for placement in standing)
    if request.method == "POST":
        return _unplace(request, model_id, runs=runs)
    context = {"model": model, "standing": standing, "runs": runs, "folders": [s.folder for s in model.sources.all()]}
    return page_or_fragment(request, "jobs/unplace.html", "jobs/_unplace_form.html", context)


def _unplace(request: HttpRequest, model_id: str, *, runs: bool) -> HttpResponse:
    actor, confirm = actors.of(request), request.POST.get("confirm", "").strip()
    to = reverse("models:detail", args=[model_id])
    try:
        with audit_log.refusals_recorded("model.unplace", actor, model_id=model_id):
            if runs and confirm != model_id:
                raise ConfirmationRequired(f"Type {model_id} to confirm that it is stopped and taken off its node.")
            unplacing.request(model_id, actor)
    except MirbadError as error:
        return refused(request, error, to=to)
    return done(request, f"{model_id} is being taken off its node.", to=to, go=True)


def _begin(request: HttpRequest, model_id: str) -> HttpResponse:
    actor, sent = actors.of(request), request.POST
    node_id = sent.get("node", "")
    mode = sent.get("mode", "auto")
    return perform(
        request,
        lambda: moves.request(
            model_id,
            node_id,
            tuple(sent.getlist(f"gpus-{node_id}")),
            actor,
            mode="stop-first" if mode == "stop-first" else "auto",
            hub_token=sent.get("token", "").strip()[:500],
            source_node_id=sent.get("source", ""),
        ),
        f"{model_id} is moving to {node_id}.",
        to=_here(model_id),
        go=True,
    )


def _here(model_id: str) -> str:
    return reverse("jobs:model-move", args=[model_id])


def _model(model_id: str) -> ModelDefinition:
    try:
        return queries.one_model(model_id)
    except NotFound as error:
        raise Http404(error.detail) from error


def _is_fresh(record: moves.MoveRecord) -> bool:
    ended = record.operation.finished_at
    return ended is not None and clock.now() - ended < _SHOWN_FOR


def _following(model: ModelDefinition, record: moves.MoveRecord) -> dict[str, object]:
    shown = row(record.operation)
    lines = tuple(record.operation.events.order_by("id").values_list("text", flat=True))
    return {"model": model, "move": MoveState(record, shown, lines)}


def _source(model: ModelDefinition, node_id: str) -> str:
    """The node that it is moved from; "" for a model that stands nowhere."""
    standing = [placement.node_id_text for placement in queries.placements_of(model)]
    return node_id if node_id in standing else (standing[0] if standing else "")


def _targets(model: ModelDefinition) -> list[Target]:
    taken = {placement.node_id_text for placement in queries.placements_of(model)}
    found = [_target(model, node) for node in Node.objects.approved().order_by("pk") if node.pk not in taken]
    return sorted(found, key=lambda target: bool(target.problem))


def _target(model: ModelDefinition, node: Node) -> Target:
    known = node_queries.capabilities(node)
    gpus = known.gpus if known is not None else ()
    words = tuple(
        (gpu.uuid, f"GPU {gpu.index} · {gpu.name or 'not named'} · {parts.size(gpu.memory_bytes)}") for gpu in gpus
    )
    return Target(node.pk, node.name, _problem(model, node, tuple(gpu.uuid for gpu in gpus)), words)


def _problem(model: ModelDefinition, node: Node, gpus: tuple[str, ...]) -> str:
    """Why the node cannot be chosen, from its row alone; "" when it can, with GPUs that are yet to be chosen."""
    if node.draining:
        return "It is draining; undrain it first."
    if node.reachability != ONLINE:
        name = node_queries.shown_state(node, ()).name
        return f"{name}: {node.reachability_reason}" if node.reachability_reason else f"It reads {name} now."
    # With its first GPU, so that only what no choice of GPUs could mend is told here.
    wish = feasible.Wish(model.runtime, model.delivery, gpus[:1])
    found = feasible.problems(wish, node.pk, apply.facts_of(node))
    return next((problem.message for problem in found if problem.field != "placement.gpuUuids"), "")
