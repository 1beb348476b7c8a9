"""The question before a start that does not fit, or whose replies will take minutes."""

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from mirbad.kernel.errors import NotFound
from mirbad.kernel.roles import OPERATOR
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment
from models_app import queries
from models_app.fit.verdict import State
from models_app.placement import fitting


def is_asked_about(model_id: str) -> bool:
    """Whether a person should see numbers before this model starts; a model that is not there is the start's matter."""
    try:
        return bool(fitting.before_start(queries.one_model(model_id)))
    except NotFound:
        return False


@require_GET
@require_role(OPERATOR)
def ask(request: HttpRequest, model_id: str) -> HttpResponse:
    """What speaks against starting it now, part by part, and the way to start it anyway."""
    try:
        model = queries.one_model(model_id)
    except NotFound as error:
        raise Http404(error.detail) from error
    fits = fitting.before_start(model)
    short = any(fit.state is State.DOES_NOT_FIT for fit in fits)
    context = {"model": model, "fits": fits, "short": short}
    return page_or_fragment(request, "jobs/start_ask.html", "jobs/_start_ask.html", context)
