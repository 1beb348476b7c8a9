"""Pages of the fleet's CA: its state, its rotation, and its replacement after the key was stolen."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from jobs.pages.contexts.ca import context
from jobs.requests import ca_rotation
from mirbad.accounts.actions import act
from mirbad.kernel.roles import OPERATOR, OWNER, VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import is_fragment, page_or_fragment, private
from nodes.pki import progress


@require_GET
@require_role(VIEWER)
def page(request: HttpRequest) -> HttpResponse:
    """Show the CA, its rotation, and the possible actions."""
    return page_or_fragment(request, "jobs/ca.html", "jobs/_ca.html", context(request))


@require_GET
@require_role(VIEWER)
def card(request: HttpRequest) -> HttpResponse:
    """Show the open rotation and nodes left behind, for the list of nodes; empty without either."""
    if not is_fragment(request):
        return redirect("jobs:ca")
    return private(render(request, "jobs/_ca_card.html", context(request)))


@require_GET
@require_role(VIEWER)
def of_node(request: HttpRequest, node_id: str) -> HttpResponse:
    """Show the progress of one node, for its Certificates tab."""
    if not is_fragment(request):
        return redirect("jobs:ca")
    shown = context(request) | {"node": progress.of_node(node_id)}
    return private(render(request, "jobs/_ca_of_node.html", shown))


@require_POST
@require_role(OPERATOR)
def start(request: HttpRequest) -> HttpResponse:
    """Begin a rotation."""
    text = "CA rotation started. It continues by itself."
    return act(request, ca_rotation.ACTION, ca_rotation.start, text, to=_page(), reauthenticate=True)


@require_POST
@require_role(OPERATOR)
def roll_back(request: HttpRequest) -> HttpResponse:
    """Roll back to the old CA."""
    text = "Rolling back to the old CA."
    return act(request, ca_rotation.ACTION, ca_rotation.roll_back, text, to=_page(), reauthenticate=True)


@require_POST
@require_role(OPERATOR)
def close(request: HttpRequest) -> HttpResponse:
    """Close the rotation without the nodes that do not answer."""
    text = "Nodes that do not answer are left behind."
    return act(request, ca_rotation.ACTION, ca_rotation.close, text, to=_page(), reauthenticate=True)


@require_http_methods(["GET", "POST"])
@require_role(OWNER)
def replace(request: HttpRequest) -> HttpResponse:
    """Ask for the phrase, and replace the CA."""
    if request.method == "POST":
        confirm = request.POST.get("confirm", "")
        return act(
            request,
            ca_rotation.ACTION,
            lambda actor: ca_rotation.replace_stolen(confirm, actor),
            "The CA is replaced. Re-pair every node; nodes serve nothing until then.",
            to=_page(),
            reauthenticate=True,
            go=True,
        )
    shown = {"phrase": ca_rotation.PHRASE, "url": reverse("jobs:ca-replace")}
    return page_or_fragment(request, "jobs/ca_replace.html", "jobs/_ca_replace.html", shown)


def _page() -> str:
    return reverse("jobs:ca")
