"""The confirmation before a start that does not fit, or that serves slowly."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from jobs.requests import start_questions
from mirbad.kernel.errors import NotFound
from mirbad.kernel.roles import OPERATOR
from mirbad.web.access import require_role
from mirbad.web.fragments import go_to, page_or_fragment
from models_app import queries

_RESTART = "restart"


def asked_instead(
    request: HttpRequest, model_id: str, *, replica: UUID | None = None, restart: bool = False
) -> HttpResponse | None:
    """Return the way to the question when a person should see numbers before this start; None once they have."""
    if request.POST.get("force") == "on" or request.POST.get("asked") == "on":
        return None
    if not start_questions.find(model_id, replica=replica, restart=restart):
        return None
    query = f"?replica={replica}" if replica is not None else "?verb=restart" if restart else ""
    return go_to(request, reverse("jobs:model-start-ask", args=[model_id]) + query)


@require_GET
@require_role(OPERATOR)
def ask(request: HttpRequest, model_id: str) -> HttpResponse:
    """Show the reasons against a start now, part by part, and the way to start anyway."""
    model = queries.one_model(model_id)
    restart = request.GET.get("verb") == _RESTART
    replica = _replica(request.GET.get("replica", ""))
    fits = start_questions.find(model_id, replica=replica, restart=restart)
    if replica is not None:
        action = reverse("jobs:replica-start", args=[model_id, replica])
    else:
        action = reverse("jobs:model-restart" if restart else "jobs:model-start", args=[model_id])
    context = {
        "model": model,
        "fits": fits,
        "short": start_questions.is_short(fits),
        "action": action,
        "verb": "Restart" if restart else "Start",
    }
    return page_or_fragment(request, "jobs/start_ask.html", "jobs/_start_ask.html", context)


def _replica(text: str) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError as error:
        raise NotFound("That replica does not exist.") from error
