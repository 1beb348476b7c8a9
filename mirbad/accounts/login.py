"""Log-in and log-out of people."""

from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView, redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache

from audit import log as audit
from mirbad.accounts import actors, attempts
from mirbad.accounts.errors import ReauthenticationFailed, TooManyLogins, WrongPassword
from mirbad.accounts.hashing import HashingBusy
from mirbad.accounts.people import login_is_disabled
from mirbad.api import problems
from mirbad.api.addresses import client_address
from mirbad.kernel import actor
from mirbad.kernel.errors import MirbadError

TEMPLATE = "accounts/login.html"


class LoginForm(AuthenticationForm):
    """Name and password. A template shows `form.non_field_errors`."""

    error_messages = {
        "invalid_login": "Wrong user name or password.",
        "inactive": "This account is disabled. Ask an owner.",
    }


@method_decorator(never_cache, name="dispatch")
class Login(LoginView):
    """The log-in page (`TEMPLATE`, with ``form`` and ``login_disabled``): a failure is a 403, one too many a 429."""

    template_name = TEMPLATE
    authentication_form = LoginForm
    redirect_authenticated_user = True
    counted: tuple[attempts.Counter, ...] = ()

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add whether log-in is disabled."""
        return {**super().get_context_data(**kwargs), "login_disabled": login_is_disabled()}

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Count the attempt before anything is checked. Refuse when there were too many, or log-in is disabled."""
        name = request.POST.get("username", "")
        try:
            self.counted = attempts.admit(attempts.of(request, name), name)
            if login_is_disabled():
                return self._disabled()
            return super().post(request, *args, **kwargs)
        except TooManyLogins as error:
            return _refused(request, error)
        except HashingBusy as error:
            attempts.take_back(self.counted)
            return _refused(request, error)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Sign in, and record it in the audit log under the new session."""
        response = super().form_valid(form)
        name = form.get_user().get_username()
        attempts.take_back(self.counted)
        attempts.remember_device(self.request, response, name)
        audit.record("login", actors.of(self.request), target=name)
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Respond to a wrong password with 403 and an audit line."""
        error = WrongPassword("Wrong user name or password.")
        self._record(error, target=str(form.data.get("username", "")))
        if problems.wants_json(self.request):
            return problems.response(error)
        return self.render_to_response(self.get_context_data(form=form), status=403)

    def _disabled(self) -> HttpResponse:
        error = ReauthenticationFailed(
            "Log-in is disabled: MIRBAD_ADMIN_PASSWORD is set but empty. Set a password and restart Mirbad."
        )
        self._record(error)
        if problems.wants_json(self.request):
            return problems.response(error)
        return self.render_to_response(self.get_context_data(form=LoginForm(self.request)), status=403)

    def _record(self, error: MirbadError, target: str = "") -> None:
        audit.record_refusal("login", actor.api(client_address(self.request)), error, target=target)


class Logout(LogoutView):
    """Ends the session; POST only."""

    http_method_names = ["post", "options"]

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Sign out, and record it in the audit log under the session that ended."""
        name, who = request.user.get_username(), actors.of(request)
        response = super().post(request, *args, **kwargs)
        if name:
            audit.record("logout", who, target=name)
        return response


def from_admin(request: HttpRequest) -> HttpResponse:
    """Redirect from the Django admin to the log-in page, or refuse a signed-in person who is not staff."""
    if request.user.is_authenticated:
        raise PermissionDenied("These pages are for staff. Ask an owner for staff rights.")
    return redirect_to_login(request.GET.get("next", reverse("admin:index")))


def _refused(request: HttpRequest, error: MirbadError) -> HttpResponse:
    """Respond to an attempt whose password is not checked: as problem+json, or the log-in page with the sentence."""
    if problems.wants_json(request):
        return problems.response(error)
    form = LoginForm(request)
    form.is_bound = True
    form.cleaned_data = {}
    form.add_error(None, error.detail)
    context = {"form": form, "login_disabled": False, "refused": error}
    response = render(request, TEMPLATE, context, status=error.http_status)
    if error.retry_after_seconds is not None:
        response["Retry-After"] = str(error.retry_after_seconds)
    return response
