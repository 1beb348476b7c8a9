"""Views of the admin tokens: list, create, revoke. For owners."""

from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from audit import log as audit_log
from mirbad.accounts import actors, tokens
from mirbad.accounts.models import AdminToken
from mirbad.accounts.pages import contexts
from mirbad.accounts.pages.forms import TokenForm
from mirbad.kernel.errors import MirbadError
from mirbad.kernel.roles import OWNER
from mirbad.web.access import require_role
from mirbad.web.fragments import page_or_fragment, perform

ACTION = "admin-token"
_SHOWN = 500


@require_http_methods(["GET", "HEAD"])
@require_role(OWNER)
def index(request: HttpRequest) -> HttpResponse:
    """Show the tokens for ``/api``."""
    revoked = request.GET.get("revoked") == "1"
    found = AdminToken.objects.select_related("owner")
    if not revoked:
        found = found.filter(revoked_at=None)
    context = {"tokens": contexts.rows(found[:_SHOWN]), "include_revoked": revoked}
    return page_or_fragment(request, "accounts/tokens.html", "accounts/_tokens.html", context)


@require_http_methods(["GET", "POST"])
@require_role(OWNER)
def create(request: HttpRequest) -> HttpResponse:
    """Create a token. Its secret is shown in this one response and never again."""
    form = TokenForm(request.POST or None)
    context: dict[str, Any] = {"form": form, "status_url": request.build_absolute_uri(reverse("api-status"))}
    if request.method == "POST" and form.is_valid():
        actor, wanted = actors.of(request), form.cleaned_data
        owner = request.user if isinstance(request.user, User) else None
        try:
            with audit_log.refusals_recorded(ACTION, actor, target=wanted["name"]):
                context["token"], context["secret"] = tokens.create(
                    wanted["name"], wanted["role"], actor=actor, owner=owner, expires_at=form.expires_at()
                )
        except MirbadError as error:
            context["error"] = error
    response = page_or_fragment(request, "accounts/token_new.html", "accounts/_token_new.html", context)
    response["Cache-Control"] = "no-store"
    return response


@require_POST
@require_role(OWNER)
def revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    """Revoke a token at once."""
    actor = actors.of(request)

    def run() -> None:
        with audit_log.refusals_recorded(ACTION, actor, target=str(token_id)):
            tokens.revoke(token_id, actor)

    return perform(request, run, "The token is revoked.", to=reverse("accounts:tokens"))
