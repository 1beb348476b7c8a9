"""Views of the API keys: make, list, revoke."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from audit import log as audit_log
from mirbad.accounts import actors
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR, VIEWER, has_role
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment, perform
from models_app import keys
from models_app.models import ModelDefinition
from models_app.pages import contexts
from models_app.pages.forms import KeyForm


@require_http_methods(["GET", "HEAD"])
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """The keys of ``/v1``."""
    return page_or_fragment(request, "models/keys.html", "models/_keys.html", _listed(request))


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def create(request: HttpRequest) -> HttpResponse:
    """Make a key. Its secret is shown in this one answer and never again."""
    choices = [(model.pk, model.name) for model in ModelDefinition.objects.only("id", "display_name")]
    form = KeyForm(request.POST or None, models=choices)
    context: dict[str, Any] = {"form": form, "chat_url": request.build_absolute_uri("/v1/chat/completions")}
    if request.method == "POST" and form.is_valid():
        actor = actors.of(request)
        try:
            with audit_log.refusals_recorded("api-key", actor, target=form.cleaned_data["name"]):
                context["key"], context["secret"] = keys.create(
                    form.cleaned_data["name"],
                    actor=actor,
                    allowed_models=form.cleaned_data["allowed_models"],
                    expires_at=form.expires_at(),
                )
        except MirbadError as error:
            context["error"] = error
    response = page_or_fragment(request, "models/key_new.html", "models/_key_new.html", context)
    response["Cache-Control"] = "no-store"
    return response


@require_POST
@require_role(OPERATOR)
def revoke(request: HttpRequest, key_id: int) -> HttpResponse:
    """End a key for good."""
    actor = actors.of(request)

    def run() -> None:
        with audit_log.refusals_recorded("api-key", actor, target=str(key_id)):
            keys.revoke(key_id, actor)

    return perform(request, run, "The key is revoked; it is refused within two seconds.", to=reverse("models:keys"))


def _listed(request: HttpRequest) -> dict[str, Any]:
    revoked = request.GET.get("revoked") == "1"
    return {
        "keys": contexts.api_keys(include_revoked=revoked),
        "include_revoked": revoked,
        "may_make": has_role(request.user, OPERATOR),
    }
