"""Log-in and log-out of people."""

from typing import Any

from axes.helpers import get_failure_limit
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView, redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache

from audit import log as audit
from mirbad.accounts import actors
from mirbad.accounts.errors import ReauthenticationFailed, TooManyLogins, WrongPassword
from mirbad.accounts.people import login_is_disabled
from mirbad.api import problems
from mirbad.api.addresses import client_address
from mirbad.kernel import actor

TEMPLATE = "accounts/login.html"
COOL_OFF_SECONDS = 60


class LoginForm(AuthenticationForm):
    """Name and password. A template shows `form.non_field_errors`."""

    error_messages = {
        "invalid_login": "Name and password do not belong together.",
        "inactive": "This account is switched off. Ask an owner.",
    }


@method_decorator(never_cache, name="dispatch")
class Login(LoginView):
    """The log-in page (`TEMPLATE`, with ``form`` and ``login_disabled``): failures answer 403, after five 429."""

    template_name = TEMPLATE
    authentication_form = LoginForm
    redirect_authenticated_user = True

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Adds whether log-in is switched off."""
        return {**super().get_context_data(**kwargs), "login_disabled": login_is_disabled()}

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Refuses before any password is looked at when log-in is disabled."""
        if not login_is_disabled():
            return super().post(request, *args, **kwargs)
        error = ReauthenticationFailed(
            "Log-in is disabled: MIRBAD_ADMIN_PASSWORD is set but empty. Set a password and restart Mirbad."
        )
        audit.record_refusal("login", actor.api(client_address(request)), error)
        if problems.wants_json(request):
            return problems.response(error)
        return self.render_to_response(self.get_context_data(form=LoginForm(request)), status=403)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Signs in, and says so in the audit log under the new session."""
        response = super().form_valid(form)
        audit.record("login", actors.of(self.request), target=form.get_user().get_username())
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Wrong password: 403 and an audit line. The try after the fifth is answered by `too_many`."""
        request = self.request
        failures = getattr(request, "axes_failures_since_start", None)
        if failures is not None and failures <= get_failure_limit(request, {}):
            # The fifth wrong password itself is told so; only what follows is locked out.
            request.axes_locked_out = False  # type: ignore[attr-defined]
        if getattr(request, "axes_locked_out", False):
            return too_many(request)
        error = WrongPassword("Name and password do not belong together.")
        audit.record_refusal(
            "login", actor.api(client_address(request)), error, target=str(form.data.get("username", ""))
        )
        if problems.wants_json(request):
            return problems.response(error)
        return self.render_to_response(self.get_context_data(form=form), status=403)


class Logout(LogoutView):
    """Ends the session; POST only."""

    http_method_names = ["post", "options"]


def from_admin(request: HttpRequest) -> HttpResponse:
    """Where the Django admin sends who may not enter: to the one log-in, or to a refusal when signed in already."""
    if request.user.is_authenticated:
        raise PermissionDenied("The admin pages are for staff. Ask an owner to make your account one.")
    return redirect_to_login(request.GET.get("next", reverse("admin:index")))


def too_many(request: HttpRequest, *_: Any) -> HttpResponse:
    """The answer to a client that is locked out: 429 as problem+json, or the log-in page with that message.

    django-axes calls it too, with arguments that differ between its synchronous and asynchronous middleware.
    """
    error = TooManyLogins(
        "Too many wrong passwords from this address. Wait a minute, then try again.",
        retry_after_seconds=COOL_OFF_SECONDS,
    )
    if not getattr(request, "_mirbad_lockout_recorded", False):
        request._mirbad_lockout_recorded = True  # type: ignore[attr-defined]  # noqa: SLF001  our own mark, one line a request
        audit.record_refusal("login", actor.api(client_address(request)), error)
    if problems.wants_json(request):
        return problems.response(error)
    form = LoginForm(request)
    form.is_bound = True
    form.cleaned_data = {}
    form.add_error(None, error.detail)
    response = render(
        request, TEMPLATE, {"form": form, "login_disabled": False, "locked_out": True}, status=error.http_status
    )
    response["Retry-After"] = str(COOL_OFF_SECONDS)
    return response
