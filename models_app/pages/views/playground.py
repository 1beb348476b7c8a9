"""The playground: a chat with a model through the gateway of this process, without a key."""

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_GET, require_POST

from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import VIEWER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment
from models_app.gateway import internal
from models_app.pages.contexts import models


@require_GET
@require_role(VIEWER)
def page(request: HttpRequest) -> HttpResponse:
    """Show the playground; ``?model=`` chooses a served name."""
    context = {"models": models.for_playground(), "chosen": request.GET.get("model", "")}
    return page_or_fragment(request, "models/playground.html", "models/_playground.html", context)


@require_POST
@require_role(VIEWER)
async def stream(request: HttpRequest) -> HttpResponseBase:
    """Stream a chat completion of the engine. Errors are ``{"error": {code, message}}`` with their status."""
    try:
        answer = await internal.open_stream(request.body)
    except MirbadError as error:
        body: dict[str, Any] = {"error": {"code": error.code, "message": error.detail}}
        return JsonResponse(body, status=error.http_status)
    response = StreamingHttpResponse(answer, content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    # A buffering proxy would undo the stream.
    response["X-Accel-Buffering"] = "no"
    return response
