"""Health: is this process there, is the whole master ready, and its metrics."""

from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from rest_framework.request import Request
from rest_framework.views import APIView

from mirbad.kernel import room
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Unavailable
from mirbad.kernel.roles import VIEWER
from mirbad.tasking import heartbeat
from models_app.gateway.metrics import render
from nodes import metrics as of_nodes

DATA_FOLDER = "the data folder"


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """200 as long as this process answers."""
    return HttpResponse("ok\n", content_type="text/plain; charset=utf-8", headers={"Cache-Control": "no-store"})


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """200 when database, disk, broker and every process are well, else 503 with the reasons."""
    reasons = unready_reasons()
    return JsonResponse(
        {"ready": not reasons, "reasons": reasons},
        status=503 if reasons else 200,
        headers={"Cache-Control": "no-store", **({"Retry-After": "2"} if reasons else {})},
    )


def unready_reasons() -> list[str]:
    """What keeps the master from being ready, as sentences; empty when nothing does."""
    reasons = []
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM django_migrations LIMIT 1")
    except DatabaseError as error:
        reasons.append(f"The database does not answer: {' '.join(str(error).split())}")
    if unwritable := room.why_unwritable(settings().data, DATA_FOLDER):
        reasons.append(unwritable)
    try:
        alive = heartbeat.alive()
    except Unavailable as error:
        reasons.append(error.detail)
    else:
        # for how long is not known: the broker may be younger than the silence, or the process not up yet
        reasons.extend(f"Process {name} gives no sign of life." for name in heartbeat.PROCESSES if name not in alive)
    return reasons


class Metrics(APIView):
    """Prometheus metrics, for whoever may look: an admin token as bearer, or a signed-in person."""

    read_role = VIEWER
    required_role = VIEWER
    schema = None

    def get(self, request: Request) -> HttpResponse:
        """The text exposition of this process, and of the nodes."""
        return HttpResponse(render() + of_nodes.render(), content_type="text/plain; version=0.0.4; charset=utf-8")
