"""Pages of operations, and the actions on models that are operations."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from jobs.pages.contexts import operations as contexts
from jobs.pages.contexts.rows import names_of_kinds
from jobs.pages.views import start_confirmation
from jobs.requests import cancellation, model_runs
from mirbad.accounts import actors
from mirbad.kernel.actor import Actor
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment, perform, private

_LONGEST = 100
STATES = (("", "All"), ("open", "In progress"), ("failed", "Failed"), ("succeeded", "Done"), ("cancelled", "Cancelled"))


@require_GET
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """Show operations, newest first."""
    selection = contexts.OperationFilter(
        *(_parameter(request, name) for name in ("state", "kind", "node", "model", "before"))
    )
    operations, following = contexts.find(selection)
    url = reverse("jobs:list")
    context = {
        "operations": operations,
        "next": following,
        "selection": selection,
        "newest": selection.query(),
        "older": selection.query(before=following),
        "states": [(f"{url}?{selection.query(state=value)}", value, label) for value, label in STATES],
        "kinds": names_of_kinds(),
    }
    return page_or_fragment(request, "jobs/list.html", "jobs/_list.html", context)


@require_GET
@require_role(VIEWER)
def activity(request: HttpRequest) -> HttpResponse:
    """Show the open operations, in the drawer of every page."""
    context = {"activity": contexts.activity(), "places": ("activity-count", "activity-count-top")}
    return private(render(request, "jobs/_activity.html", context))


def _parameter(request: HttpRequest, name: str) -> str:
    """Return a parameter of the list; an impossible value selects nothing."""
    sent = request.GET.get(name, "").strip()
    return sent if sent.isprintable() and len(sent) <= _LONGEST else ""


@require_GET
@require_role(VIEWER)
def detail(request: HttpRequest, operation_id: str) -> HttpResponse:
    """Show one operation and its timeline."""
    context = {"operation": contexts.detail(operation_id)}
    return page_or_fragment(request, "jobs/detail.html", "jobs/_detail.html", context)


@require_POST
@require_role(OPERATOR)
def cancel(request: HttpRequest, operation_id: str) -> HttpResponse:
    """Cancel an operation."""
    actor = actors.of(request)
    return perform(
        request,
        lambda: cancellation.request(operation_id, actor),
        f"Cancelling. {contexts.cancelling_text(operation_id)}".rstrip(),
        to=reverse("jobs:detail", args=[operation_id]),
    )


@require_GET
@require_role(VIEWER)
def of_model(request: HttpRequest, model_id: str) -> HttpResponse:
    """Show the open operations of a model; a part of its page."""
    return private(render(request, "jobs/_of_model.html", {"operations": contexts.of_model(model_id)}))


@require_GET
@require_role(VIEWER)
def timeline(request: HttpRequest, model_id: str) -> HttpResponse:
    """Show the timeline of a model; a part of its page."""
    return private(render(request, "jobs/_timeline.html", {"events": contexts.timeline(model_id)}))


def _on_model(request: HttpRequest, model_id: str, call: Callable[[str, Actor], Any], words: str) -> HttpResponse:
    actor, to = actors.of(request), reverse("models:detail", args=[model_id])
    return perform(request, lambda: call(model_id, actor), words, to=to, go=request.POST.get("go") == "on")


@require_POST
@require_role(OPERATOR)
def start(request: HttpRequest, model_id: str) -> HttpResponse:
    """Start a model; ``force`` skips the memory check. One that does not fit, or is slow, needs a confirmation."""
    force = request.POST.get("force") == "on"
    if question := start_confirmation.asked_instead(request, model_id):
        return question
    return _on_model(request, model_id, partial(model_runs.start, force=force), f"{model_id} is starting.")


@require_POST
@require_role(OPERATOR)
def stop(request: HttpRequest, model_id: str) -> HttpResponse:
    """Stop a model."""
    return _on_model(request, model_id, model_runs.stop, f"{model_id} is stopping.")


@require_POST
@require_role(OPERATOR)
def restart(request: HttpRequest, model_id: str) -> HttpResponse:
    """Stop a model and start it with its current settings; it is asked about as a start is."""
    force = request.POST.get("force") == "on"
    if question := start_confirmation.asked_instead(request, model_id, restart=True):
        return question
    return _on_model(request, model_id, partial(model_runs.restart, force=force), f"{model_id} is restarting.")
