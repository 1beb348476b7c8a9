"""The history of a node: charts over hours and days, as a page and as a fragment of others."""

from datetime import timedelta

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from mirbad.kernel import clock
from mirbad.kernel.roles import VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment
from nodes import queries
from nodes.pages.contexts import charts
from nodes.telemetry import history

PERIODS = ((1, "1 h", 60), (6, "6 h", 300), (24, "24 h", 900), (168, "7 d", 7200), (720, "30 d", 21600))
"""Hours, text, and seconds of a step; at most 120 steps each."""

_USUAL = 6


@require_GET
@require_role(VIEWER)
def node_history(request: HttpRequest, node_id: str) -> HttpResponse:
    """Show the charts of one node; ``?hours=`` is one of the periods."""
    node = queries.get(node_id)
    asked = request.GET.get("hours", "")
    hours, words, step = next((one for one in PERIODS if str(one[0]) == asked), PERIODS[1])
    now = clock.now()
    start = now - timedelta(hours=hours) + timedelta(seconds=step)
    step = max(step, history.finest_step(start, now))
    found = history.read(node_id, history.Span(start, now, step))
    url = reverse("nodes:history", args=[node_id])
    context = {
        "node": node,
        "charts": charts.charts(found),
        "nothing": found.empty,
        "hours": hours,
        "words": words,
        "url": url,
        "here": f"{url}?hours={hours}",
        "periods": [(one, label) for one, label, _ in PERIODS],
        "width": charts.WIDTH,
        "height": charts.HEIGHT,
    }
    return page_or_fragment(request, "nodes/history.html", "nodes/_history.html", context)
