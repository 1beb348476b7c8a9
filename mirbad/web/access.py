"""Access to pages by role."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse

from mirbad.kernel.errors import NotFound
from mirbad.kernel.roles import Role, has_role

View = TypeVar("View", bound=Callable[..., Any])


def require_role(role: Role) -> Callable[[View], View]:
    """Restrict a page to people of `role` or above: strangers go to the log-in page, others get 403. Also for async
    views.

    A NotFound that leaves a view becomes a 404 page, so views need no wrapper of their own.
    """

    def decorate(view: View) -> View:
        guarded: Any = _guard_async(view, role) if iscoroutinefunction(view) else _guard(view, role)
        guarded.required_role = role
        return cast("View", guarded)

    return decorate


def _guard(view: Callable[..., HttpResponseBase], role: Role) -> Callable[..., HttpResponseBase]:
    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return _refusal(request, role) or view(request, *args, **kwargs)
        except NotFound as error:
            raise Http404(error.detail) from error

    return guarded


def _guard_async(
    view: Callable[..., Awaitable[HttpResponseBase]], role: Role
) -> Callable[..., Awaitable[HttpResponseBase]]:
    @wraps(view)
    async def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return await sync_to_async(_refusal)(request, role) or await view(request, *args, **kwargs)
        except NotFound as error:
            raise Http404(error.detail) from error

    return guarded


def _refusal(request: HttpRequest, role: Role) -> HttpResponse | None:
    """Return the redirection of a stranger, None for a person with the role. Raises PermissionDenied."""
    if not request.user.is_authenticated:
        return _to_login(request)
    if not has_role(request.user, role):
        raise PermissionDenied(f"This needs the role {role}. Ask an owner for it.")
    return None


def _to_login(request: HttpRequest) -> HttpResponse:
    if request.headers.get("HX-Request") != "true":
        return redirect_to_login(request.get_full_path())
    # A fragment must not be replaced by the log-in page: the whole page goes there.
    response = HttpResponse(status=401)
    response["HX-Redirect"] = reverse("login")
    return response
