"""Health of this process and of the whole master, and its metrics."""

from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from rest_framework.request import Request
from rest_framework.views import APIView

from jobs.backup import freshness
from jobs.backup import metrics as of_backups
from mirbad.api.bodylimit import Send
from mirbad.kernel import disk
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Unavailable
from mirbad.kernel.roles import VIEWER
from mirbad.tasking import heartbeat
from models_app import metrics as of_models
from models_app.gateway.metrics import render
from nodes import metrics as of_nodes

DATA_FOLDER = "the data folder"


async def alive(send: Send) -> None:
    """Respond to ``/healthz`` in the event loop: the answer says that the loop turns, and waits for no thread."""
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"3"),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok\n"})


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """Return 200 while this process responds."""
    return HttpResponse("ok\n", content_type="text/plain; charset=utf-8", headers={"Cache-Control": "no-store"})


@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """Return 200 when database, disk, broker and every process are well, else 503 with the reasons.

    `warnings` need an owner, but are no reason to send nobody here.
    """
    reasons = unready_reasons()
    return JsonResponse(
        {"ready": not reasons, "reasons": reasons, "warnings": _warnings()},
        status=503 if reasons else 200,
        headers={"Cache-Control": "no-store", **({"Retry-After": "2"} if reasons else {})},
    )


def unready_reasons() -> list[str]:
    """Return the reasons why the master is not ready, as sentences; empty when it is."""
    reasons = []
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM django_migrations LIMIT 1")
    except DatabaseError as error:
        reasons.append(f"The database does not respond: {' '.join(str(error).split())}")
    if unwritable := disk.unwritable_reason(settings().data, DATA_FOLDER):
        reasons.append(unwritable)
    try:
        alive = heartbeat.alive()
    except Unavailable as error:
        reasons.append(error.detail)
    else:
        # for an unknown time: the broker may be younger than the silence, or the process not up yet
        reasons.extend(f"Process {name} sends no heartbeat." for name in heartbeat.PROCESSES if name not in alive)
    return reasons


def _warnings() -> list[str]:
    """Return what needs an owner. Anybody may read this, so it names no destination."""
    try:
        stale = any(age.is_stale for age in freshness.ages())
    except DatabaseError:
        return []  # a reason tells it
    return ["The last good backup is older than it should be."] if stale else []


class Metrics(APIView):
    """Prometheus metrics, for viewers: an admin token as bearer, or a signed-in person."""

    read_role = VIEWER
    required_role = VIEWER
    schema = None

    def get(self, request: Request) -> HttpResponse:
        """Return the text exposition of this process, of the nodes and of backups."""
        text = render() + of_models.render() + of_nodes.render() + of_backups.render()
        return HttpResponse(text, content_type="text/plain; version=0.0.4; charset=utf-8")
