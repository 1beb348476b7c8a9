"""The page about the recovery that this master was made by: its takeover, and what is left to do."""

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from jobs.pages.contexts import recovered
from mirbad.kernel.roles import VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import go_to, page_or_fragment


@require_GET
@require_role(VIEWER)
def page(request: HttpRequest) -> HttpResponse:
    """Show who has answered since the recovery. ``?restarted`` is the page that waited for the restart."""
    if "restarted" in request.GET:
        return go_to(request, reverse("jobs:backup-recovered"))
    found = recovered.read()
    if found is None:
        raise Http404("This master was not made by a recovery.")
    return page_or_fragment(request, "jobs/backup_recovered.html", "jobs/_backup_recovered.html", {"recovered": found})
