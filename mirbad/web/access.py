"""Roles of people: what a viewer, an operator and an owner may do. They are Django groups of those names."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse

Role = Literal["viewer", "operator", "owner"]
VIEWER: Role = "viewer"
OPERATOR: Role = "operator"
OWNER: Role = "owner"
_RANK: dict[str, int] = {VIEWER: 1, OPERATOR: 2, OWNER: 3}

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def rank(user: AbstractBaseUser | AnonymousUser) -> int:
    """0 for a stranger, then viewer 1, operator 2, owner 3. One query, remembered on the user object."""
    if not user.is_authenticated or not user.is_active:
        return 0
    known: int | None = getattr(user, "_mirbad_rank", None)
    if known is None:
        if getattr(user, "is_superuser", False):
            known = _RANK[OWNER]
        else:
            groups: Any = getattr(user, "groups")  # noqa: B009 - AbstractBaseUser does not declare it
            known = max((_RANK.get(name, 0) for name in groups.values_list("name", flat=True)), default=0)
        user._mirbad_rank = known  # type: ignore[union-attr]  # noqa: SLF001 - our own memo on the request's user
    return known


def has_role(user: AbstractBaseUser | AnonymousUser, role: Role) -> bool:
    """Whether `user` may do what `role` may."""
    return rank(user) >= _RANK[role]


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
