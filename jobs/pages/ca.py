"""The page of the fleet's CA: how it stands, its rotation, and the way of a stolen key."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from audit import log as audit_log
from jobs import ca_rotation
from mirbad.accounts import actors
from mirbad.accounts.permissions import require_reauthentication
from mirbad.kernel.actor import Actor
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR, OWNER, VIEWER, has_role
from mirbad.web.access import require_role
from mirbad.web.fragments import done, is_fragment, page_or_fragment, private, refused
from nodes.pki import progress
from nodes.states import (
    CA_AGENTS_ROTATING,
    CA_AGENTS_TRUSTING,
    CA_CLOSING,
    CA_MASTER_REISSUED,
    CA_ROLLED_BACK,
    CA_ROLLING_BACK,
    CA_STARTED,
)

_STAGES = {
    CA_STARTED: "New CA made",
    CA_AGENTS_TRUSTING: "Nodes trust both",
    CA_MASTER_REISSUED: "Master shows the new one",
    CA_AGENTS_ROTATING: "Nodes get new certificates",
    CA_CLOSING: "Nodes drop the old one",
}


@dataclass(frozen=True, slots=True)
class StageMark:
    """One stage in the row of stages."""

    words: str
    mark: str
    icon: str


def _context(request: HttpRequest) -> dict[str, Any]:
    found = progress.read()
    return {
        "ca": found,
        "stages": _marks(found.rotation.stage) if found.rotation is not None and found.is_open else (),
        "may_replace": has_role(request.user, OWNER),
    }


def _marks(stage: str) -> tuple[StageMark, ...]:
    if stage in (CA_ROLLING_BACK, CA_ROLLED_BACK):
        return (StageMark("Going back to the old CA", "now", "loader"),)
    at = list(_STAGES).index(stage)
    shown = [("done", "circle-check"), ("now", "loader"), ("ahead", "circle-dashed")]
    return tuple(StageMark(words, *shown[(index >= at) + (index > at)]) for index, words in enumerate(_STAGES.values()))


@require_GET
@require_role(VIEWER)
def page(request: HttpRequest) -> HttpResponse:
    """The CA, its rotation, and what can be done."""
    return page_or_fragment(request, "jobs/ca.html", "jobs/_ca.html", _context(request))


@require_GET
@require_role(VIEWER)
def card(request: HttpRequest) -> HttpResponse:
    """The open rotation and nodes left behind, for the list of nodes; empty when there is nothing to say."""
    if not is_fragment(request):
        return redirect("jobs:ca")
    return private(render(request, "jobs/_ca_card.html", _context(request)))


@require_GET
@require_role(VIEWER)
def of_node(request: HttpRequest, node_id: str) -> HttpResponse:
    """How far one node has come, for its Certificates tab."""
    if not is_fragment(request):
        return redirect("jobs:ca")
    context = _context(request) | {"node": progress.of_node(node_id)}
    return private(render(request, "jobs/_ca_of_node.html", context))


@require_POST
@require_role(OPERATOR)
def start(request: HttpRequest) -> HttpResponse:
    """Begin a rotation."""
    return _act(request, ca_rotation.start, "The CA rotation has begun. It goes on by itself.")


@require_POST
@require_role(OPERATOR)
def roll_back(request: HttpRequest) -> HttpResponse:
    """Go back to the old CA."""
    return _act(request, ca_rotation.roll_back, "Going back to the old CA.")


@require_POST
@require_role(OPERATOR)
def close(request: HttpRequest) -> HttpResponse:
    """Wait no longer for nodes that do not answer."""
    return _act(request, ca_rotation.close, "Nodes that do not answer are left behind.")


@require_http_methods(["GET", "POST"])
@require_role(OWNER)
def replace(request: HttpRequest) -> HttpResponse:
    """Ask for the phrase, and replace the CA as it is."""
    if request.method == "POST":
        confirm = request.POST.get("confirm", "")
        return _act(
            request,
            lambda actor: ca_rotation.replace_stolen(confirm, actor),
            "The CA is replaced. Re-pair every node; until then it serves nothing.",
            go=True,
        )
    context = {"phrase": ca_rotation.PHRASE, "url": reverse("jobs:ca-replace")}
    return page_or_fragment(request, "jobs/ca_replace.html", "jobs/_ca_replace.html", context)


def _act(request: HttpRequest, call: Callable[[Actor], Any], words: str, *, go: bool = False) -> HttpResponse:
    actor = actors.of(request)
    try:
        with audit_log.refusals_recorded(ca_rotation.ACTION, actor):
            require_reauthentication(request)
            call(actor)
    except MirbadError as error:
        return refused(request, error, to=reverse("jobs:ca"))
    return done(request, words, to=reverse("jobs:ca"), go=go)
