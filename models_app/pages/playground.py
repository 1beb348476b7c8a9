"""The playground: a chat with a model, through the gateway of this process, without a key."""

import json
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_GET, require_POST

from mirbad.kernel.errors import InvalidRequest, MirbadError
from mirbad.kernel.roles import VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment
from models_app.gateway import inside
from models_app.pages import contexts


@require_GET
@require_role(VIEWER)
def page(request: HttpRequest) -> HttpResponse:
    """The page; ``?model=`` chooses a served name."""
    context = {"models": contexts.askable(), "chosen": request.GET.get("model", "")}
    return page_or_fragment(request, "models/playground.html", "models/_playground.html", context)


@require_POST
@require_role(VIEWER)
async def stream(request: HttpRequest) -> HttpResponseBase:
    """A chat completion as the engine streams it; refusals as ``{"error": {code, message}}`` with their status."""
    try:
        answer = await inside.open_stream(request.body, model=_model_of(request.body))
    except MirbadError as error:
        body: dict[str, Any] = {"error": {"code": error.code, "message": error.detail}}
        return JsonResponse(body, status=error.http_status)
    response = StreamingHttpResponse(answer, content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    # A proxy that gathers before it sends would undo the stream.
    response["X-Accel-Buffering"] = "no"
    return response


def _model_of(body: bytes) -> str:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise InvalidRequest("The body is not JSON.") from error
    if not isinstance(found, dict) or not isinstance(found.get("model"), str):
        raise InvalidRequest("Name a model.")
    return str(found["model"])
