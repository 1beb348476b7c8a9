"""Pages of a model's placement: its move to another node, followed live, and its unplace."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from jobs.pages.contexts import moves as contexts
from jobs.requests import model_runs, moves, unplacing
from mirbad.accounts import actors
from mirbad.accounts.permissions import require_reauthentication
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment, perform, private
from models_app import queries


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def move(request: HttpRequest, model_id: str) -> HttpResponse:
    """Show the form of a move, or the progress of the last one; closing the page stops nothing."""
    model = queries.one_model(model_id)
    if request.method == "POST":
        return _begin(request, model_id)
    record = moves.record(model_id)
    if record is not None and (record.open or (contexts.is_shown(record) and "again" not in request.GET)):
        context = contexts.progress(model, record)
        return page_or_fragment(request, "jobs/move.html", "jobs/_move_state.html", context)
    context = contexts.form(model, request.GET.get("source", ""))
    return page_or_fragment(request, "jobs/move.html", "jobs/_move_form.html", context)


@require_GET
@require_role(VIEWER)
def state(request: HttpRequest, model_id: str) -> HttpResponse:
    """Show the progress of the newest move; the part that the page reloads."""
    record = moves.record(model_id)
    if record is None:
        raise Http404(model_id)
    context = contexts.progress(queries.one_model(model_id), record)
    return private(render(request, "jobs/_move_state.html", context))


@require_POST
@require_role(OPERATOR)
def cancel(request: HttpRequest, model_id: str) -> HttpResponse:
    """Cancel the move and undo it."""
    actor = actors.of(request)
    text = "Cancelling the move. Its changes are undone."
    return perform(request, lambda: moves.cancel(model_id, actor), text, to=_page(model_id))


@require_POST
@require_role(OPERATOR)
def force_commit(request: HttpRequest, model_id: str) -> HttpResponse:
    """Give up the source."""
    actor, confirm = actors.of(request), request.POST.get("confirm", "")
    return perform(
        request,
        lambda: moves.force_commit(model_id, confirm, actor, sure=lambda: require_reauthentication(request)),
        "The move continues without its source.",
        to=_page(model_id),
    )


@require_POST
@require_role(OPERATOR)
def start_anyway(request: HttpRequest, model_id: str) -> HttpResponse:
    """Start the model where it is placed, without the node's memory check."""
    actor = actors.of(request)
    to = reverse("models:detail", args=[model_id])
    text = f"{model_id} is starting."
    return perform(request, lambda: model_runs.start(model_id, actor, force=True), text, to=to, go=True)


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def unplace(request: HttpRequest, model_id: str) -> HttpResponse:
    """Show the effects of an unplace, with a confirmation for a running model, and unplace."""
    model = queries.one_model(model_id)
    if request.method == "POST":
        actor, confirm = actors.of(request), request.POST.get("confirm", "")
        return perform(
            request,
            lambda: unplacing.request(model_id, actor, confirm=confirm),
            f"{model_id} is being removed from its node.",
            to=reverse("models:detail", args=[model_id]),
            go=True,
        )
    placements = queries.placements_of(model)
    context = {
        "model": model,
        "placements": placements,
        "runs": unplacing.needs_confirmation(placements),
        "folders": [source.folder for source in model.sources.all()],
    }
    return page_or_fragment(request, "jobs/unplace.html", "jobs/_unplace_form.html", context)


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
        f"Moving {model_id} to {node_id}.",
        to=_page(model_id),
        go=True,
    )


def _page(model_id: str) -> str:
    return reverse("jobs:model-move", args=[model_id])
