"""Views of operations, and the actions on models that are operations."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from jobs import requests
from jobs.pages import contexts, starting
from jobs.pages.rows import names_of_kinds
from mirbad.accounts import actors
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import NotFound
from mirbad.kernel.roles import OPERATOR, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import go_to, page_or_fragment, perform, private

_LONGEST = 100
STATES = (("", "All"), ("open", "In progress"), ("failed", "Failed"), ("succeeded", "Done"), ("cancelled", "Cancelled"))


@require_GET
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """Operations, newest first."""
    wanted = contexts.Filter(*(_asked(request, name) for name in ("state", "kind", "node", "model", "before")))
    operations, following = contexts.find(wanted)
    url = reverse("jobs:list")
    context = {
        "operations": operations,
        "next": following,
        "wanted": wanted,
        "newest": wanted.query(),
        "older": wanted.query(before=following),
        "states": [(f"{url}?{wanted.query(state=value)}", value, label) for value, label in STATES],
        "kinds": names_of_kinds(),
    }
    return page_or_fragment(request, "jobs/list.html", "jobs/_list.html", context)


@require_GET
@require_role(VIEWER)
def activity(request: HttpRequest) -> HttpResponse:
    """What happens now, for the drawer of every page."""
    context = {"activity": contexts.activity(), "places": ("activity-count", "activity-count-top")}
    return private(render(request, "jobs/_activity.html", context))


def _asked(request: HttpRequest, name: str) -> str:
    """A parameter of the list; what can be none of its values asks for nothing."""
    sent = request.GET.get(name, "").strip()
    return sent if sent.isprintable() and len(sent) <= _LONGEST else ""


@require_GET
@require_role(VIEWER)
def detail(request: HttpRequest, operation_id: str) -> HttpResponse:
    """One operation and its timeline."""
    try:
        operation = contexts.detail(operation_id)
    except NotFound as error:
        raise Http404(error.detail) from error
    return page_or_fragment(request, "jobs/detail.html", "jobs/_detail.html", {"operation": operation})


@require_POST
@require_role(OPERATOR)
def cancel(request: HttpRequest, operation_id: str) -> HttpResponse:
    """Ask an operation to end."""
    actor = actors.of(request)
    return perform(
        request,
        lambda: requests.cancel(operation_id, actor),
        "It was asked to end; what it began is undone first.",
        to=reverse("jobs:detail", args=[operation_id]),
    )


@require_GET
@require_role(VIEWER)
def of_model(request: HttpRequest, model_id: str) -> HttpResponse:
    """What happens to a model now; a part of its page."""
    return private(render(request, "jobs/_of_model.html", {"operations": contexts.of_model(model_id)}))


@require_GET
@require_role(VIEWER)
def timeline(request: HttpRequest, model_id: str) -> HttpResponse:
    """What happened to a model; a part of its page."""
    return private(render(request, "jobs/_timeline.html", {"events": contexts.timeline(model_id)}))


def _on_model(request: HttpRequest, model_id: str, call: Callable[[str, Actor], Any], words: str) -> HttpResponse:
    actor, to = actors.of(request), reverse("models:detail", args=[model_id])
    return perform(request, lambda: call(model_id, actor), words, to=to, go=request.POST.get("go") == "on")


@require_POST
@require_role(OPERATOR)
def start(request: HttpRequest, model_id: str) -> HttpResponse:
    """Start a model; with ``force`` although memory is short. What does not fit, or is slow, is asked about first."""
    force = request.POST.get("force") == "on"
    if not force and request.POST.get("asked") != "on" and starting.is_asked_about(model_id):
        return go_to(request, reverse("jobs:model-start-ask", args=[model_id]))
    return _on_model(request, model_id, partial(requests.start, force=force), f"{model_id} is starting.")


@require_POST
@require_role(OPERATOR)
def stop(request: HttpRequest, model_id: str) -> HttpResponse:
    """Stop a model."""
    return _on_model(request, model_id, requests.stop, f"{model_id} is stopping.")


@require_POST
@require_role(OPERATOR)
def restart(request: HttpRequest, model_id: str) -> HttpResponse:
    """Stop a model and start it with its present settings."""
    return _on_model(request, model_id, requests.restart, f"{model_id} is restarting.")
