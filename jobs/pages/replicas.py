"""Start and stop of one replica of a model, as actions of its page."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_POST

from jobs import requests
from mirbad.accounts import actors
from mirbad.kernel.roles import OPERATOR
from mirbad.web.access import require_role
from mirbad.web.fragments import perform


@require_POST
@require_role(OPERATOR)
def start(request: HttpRequest, model_id: str, replica: UUID) -> HttpResponse:
    """Start a replica, every shard at once."""
    actor = actors.of(request)
    return _act(
        request, model_id, lambda: requests.start_all(model_id, actor, replica=replica), "The replica is starting."
    )


@require_POST
@require_role(OPERATOR)
def stop(request: HttpRequest, model_id: str, replica: UUID) -> HttpResponse:
    """Stop a replica; the others go on."""
    actor = actors.of(request)
    return _act(
        request, model_id, lambda: requests.stop_all(model_id, actor, replica=replica), "The replica is stopping."
    )


def _act(request: HttpRequest, model_id: str, call: Callable[[], Any], words: str) -> HttpResponse:
    return perform(request, call, words, to=reverse("models:detail", args=[model_id]))
