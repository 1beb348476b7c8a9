"""The usage page."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_http_methods

from mirbad.kernel.roles import VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment
from models_app.pages.contexts import usage


@require_http_methods(["GET", "HEAD"])
@require_role(VIEWER)
def page(request: HttpRequest) -> HttpResponse:
    """Show usage over a period; ``?key=``, ``?model=`` and ``?days=`` narrow it."""
    return page_or_fragment(request, "models/usage.html", "models/_usage.html", usage.of_request(request))
