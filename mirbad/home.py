"""The overview: what serves, what is wrong, what is happening. It stands above all apps and may read them all."""

from django.http import HttpRequest, HttpResponse

from mirbad.kernel.roles import VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment


@require_role(VIEWER)
def overview(request: HttpRequest) -> HttpResponse:
    """The fleet at a glance."""
    return page_or_fragment(request, "home.html", "_home.html", {})
