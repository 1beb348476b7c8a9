"""Who may open a page."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse

from mirbad.kernel.roles import Role, has_role

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def require_role(role: Role) -> Callable[[View[P]], View[P]]:
    """A page for people of `role` or above: strangers go to the log-in page, others get 403."""

    def decorate(view: View[P]) -> View[P]:
        @wraps(view)
        def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            if not request.user.is_authenticated:
                return _to_login(request)
            if not has_role(request.user, role):
                raise PermissionDenied(f"This needs the role {role}; ask an owner for it.")
            return view(request, *args, **kwargs)

        guarded.required_role = role  # type: ignore[attr-defined]
        return guarded

    return decorate


def _to_login(request: HttpRequest) -> HttpResponse:
    if request.headers.get("HX-Request") != "true":
        return redirect_to_login(request.get_full_path())
    # A fragment must not be replaced by the log-in page: the whole page goes there.
    response = HttpResponse(status=401)
    response["HX-Redirect"] = reverse("login")
    return response
