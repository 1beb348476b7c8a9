"""Pages of the API keys: list, create, change, rotate, revoke."""

from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from audit import log as audit_log
from mirbad.accounts import actors
from mirbad.accounts.actions import act
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OPERATOR, VIEWER, has_role
from mirbad.web.access import require_role
from mirbad.web.fragments import done, page_or_fragment, refused
from models_app import keys
from models_app.models import ModelDefinition
from models_app.pages.contexts import keys as contexts
from models_app.pages.forms.keys import KeyForm

_ROTATION_GRACE = timedelta(days=1)


@require_http_methods(["GET", "HEAD"])
@require_role(VIEWER)
def index(request: HttpRequest) -> HttpResponse:
    """Show the keys of ``/v1``."""
    return page_or_fragment(request, "models/keys.html", "models/_keys.html", _listed(request))


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def create(request: HttpRequest) -> HttpResponse:
    """Create a key. Its secret is shown in this one response and never again."""
    form = KeyForm(request.POST or None, models=_choices())
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
                    limits=form.limits(),
                )
        except MirbadError as error:
            context["error"] = error
    response = page_or_fragment(request, "models/key_new.html", "models/_key_new.html", context)
    response["Cache-Control"] = "no-store"
    return response


@require_http_methods(["GET", "POST"])
@require_role(OPERATOR)
def change(request: HttpRequest, key_id: int) -> HttpResponse:
    """Change a key's name, models and limits; its secret and expiry stay."""
    key = keys.get(key_id)
    initial = {name: getattr(key, name) for name in ("name", "allowed_models", *keys.LIMIT_NAMES)}
    choices = _choices()
    # A deleted model's id stays in the list, so that saving does not open the key to all models.
    choices += [(name, name) for name in key.allowed_models if name not in dict(choices)]
    form = KeyForm(request.POST or None, models=choices, initial=initial)
    context: dict[str, Any] = {"form": form, "key": key}
    if request.method == "POST" and form.is_valid():
        actor = actors.of(request)
        changes = {name: form.cleaned_data[name] for name in ("name", *keys.LIMIT_NAMES)}
        if form.cleaned_data["allowed_models"] != key.allowed_models:
            changes["allowed_models"] = form.cleaned_data["allowed_models"]
        try:
            with audit_log.refusals_recorded("api-key", actor, target=str(key_id)):
                keys.update(key_id, actor, **changes)
        except MirbadError as error:
            context["error"] = error
        else:
            return done(request, "Key saved.", to=reverse("models:keys"), go=True)
    return page_or_fragment(request, "models/key_edit.html", "models/_key_edit.html", context)


@require_POST
@require_role(OPERATOR)
def rotate(request: HttpRequest, key_id: int) -> HttpResponse:
    """Give a key a new secret, shown in this one response; the old one stays valid for one day."""
    actor = actors.of(request)
    context: dict[str, Any] = {"chat_url": request.build_absolute_uri("/v1/chat/completions"), "rotated": True}
    try:
        with audit_log.refusals_recorded("api-key", actor, target=str(key_id)):
            context["key"], context["secret"] = keys.rotate(key_id, actor, grace=_ROTATION_GRACE)
    except MirbadError as error:
        return refused(request, error, to=reverse("models:keys"))
    response = page_or_fragment(request, "models/key_new.html", "models/_key_new.html", context)
    response["Cache-Control"] = "no-store"
    return response


@require_POST
@require_role(OPERATOR)
def revoke(request: HttpRequest, key_id: int) -> HttpResponse:
    """Revoke a key for good."""
    return act(
        request,
        "api-key",
        lambda actor: keys.revoke(key_id, actor),
        "Key revoked. It stops working within two seconds.",
        to=reverse("models:keys"),
        target=str(key_id),
    )


def _choices() -> list[tuple[str, str]]:
    return [(model.pk, model.name) for model in ModelDefinition.objects.only("id", "display_name")]


def _listed(request: HttpRequest) -> dict[str, Any]:
    revoked = request.GET.get("revoked") == "1"
    return {
        "keys": contexts.rows(include_revoked=revoked),
        "include_revoked": revoked,
        "may_make": has_role(request.user, OPERATOR),
    }
