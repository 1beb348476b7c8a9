"""The audit page."""

from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from audit.actions import ACTIONS, RESULTS
from audit.pages import contexts
from mirbad.kernel.roles import VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment


@require_GET
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """Show audit lines, newest first."""
    before = request.GET.get("before", "")
    named = {name: request.GET.get(name, "").strip() for name in ("node", "model", "action", "result")}
    filters = contexts.Filters(**named, before=int(before) if before.isdecimal() and len(before) < 19 else None)
    lines, following = contexts.find(filters)
    query = {name: value for name, value in named.items() if value}
    context = {
        "lines": lines,
        "head": contexts.head(),
        "filters": filters,
        "actions": ACTIONS,
        "results": RESULTS,
        "filtered": bool(query),
        "older": f"?{urlencode(query | {'before': following})}" if following else "",
        "newest": f"?{urlencode(query)}" if before else "",
    }
    return page_or_fragment(request, "audit/list.html", "audit/_list.html", context)
