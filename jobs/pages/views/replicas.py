"""Start and stop of one replica of a model, as actions of its page."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST

from jobs.pages.views import start_confirmation
from jobs.requests import model_runs
from mirbad.accounts import actors
from mirbad.kernel.roles import OPERATOR
from mirbad.web.access import require_role
from mirbad.web.fragments import perform


@require_POST
@require_role(OPERATOR)
def start(request: HttpRequest, model_id: str, replica: UUID) -> HttpResponse:
    """Start every shard of a replica; one that does not fit, or is slow, needs a confirmation."""
    actor, to = actors.of(request), reverse("models:detail", args=[model_id])
    if question := start_confirmation.asked_instead(request, model_id, replica=replica):
        return question
    force = request.POST.get("force") == "on"
    call = lambda: model_runs.start_all(model_id, actor, replica=replica, force=force)  # noqa: E731 - passed on, as everywhere
    return perform(request, call, "The replica is starting.", to=to, go=request.POST.get("go") == "on")


@require_POST
@require_role(OPERATOR)
def stop(request: HttpRequest, model_id: str, replica: UUID) -> HttpResponse:
    """Stop every shard of a replica; the model's other replicas keep running."""
    actor, to = actors.of(request), reverse("models:detail", args=[model_id])
    call = lambda: model_runs.stop_all(model_id, actor, replica=replica)  # noqa: E731 - passed on, as everywhere
    return perform(request, call, "The replica is stopping.", to=to)
