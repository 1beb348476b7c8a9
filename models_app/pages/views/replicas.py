"""Pages that add a replica to a model and remove one."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from mirbad.accounts import actors
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR
from mirbad.web.access import require_role
from mirbad.web.fragments import done, page_or_fragment, perform, refused
from models_app import queries
from models_app.pages.contexts import replicas
from models_app.placement import apply, multi_node


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def add(request: HttpRequest, model_id: str) -> HttpResponse:
    """Choose one node for another replica, or several that serve as one."""
    model = queries.one_model(model_id)
    if request.method == "POST":
        chosen = [node_id for node_id in request.POST.getlist("nodes") if node_id]
        placements = [(node_id, request.POST.getlist(f"gpus-{node_id}")) for node_id in chosen]
        try:
            apply.add_replica(model_id, placements, actors.of(request))
        except MirbadError as error:
            return refused(request, error, to=reverse("models:replica-add", args=[model_id]))
        words = f"Replica of {model_id} added on {', '.join(chosen)}. You can start it now."
        return done(request, words, to=_page(model_id), go=True)
    context = {
        "model": model,
        "options": replicas.options(model),
        "multi_node": model.runtime in multi_node.MULTI_NODE_RUNTIMES,
    }
    return page_or_fragment(request, "models/replica_new.html", "models/_replica_new.html", context)


@require_POST
@require_role(OPERATOR)
def remove(request: HttpRequest, model_id: str, replica: UUID) -> HttpResponse:
    """Remove a stopped replica from its nodes."""
    actor = actors.of(request)
    return perform(
        request,
        lambda: apply.remove_replica(model_id, replica, actor),
        "Replica removed. Weights stay on the node.",
        to=_page(model_id),
    )


def _page(model_id: str) -> str:
    return reverse("models:detail", args=[model_id])
