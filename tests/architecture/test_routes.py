"""Every route of the master says who may use it."""

from collections.abc import Iterator
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.permissions import SAFE_METHODS

from mirbad import recovery_urls
from mirbad.accounts.permissions import RolePermission
from mirbad.kernel.roles import OPERATOR, OWNER, VIEWER

# Open on purpose: health for probes, the log-in itself, the agent's archive (no secrets in it). Django's admin guards
# itself by `is_staff` and is tested apart.
OPEN = {"healthz", "readyz", "login", "logout", "agent/bundles", "agent/bundles/<str:name>.tar.gz"}
ROLES = {VIEWER, OPERATOR, OWNER}


def _routes(patterns: list[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for entry in patterns:
        route = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from _routes(entry.url_patterns, route)
        elif isinstance(entry, URLPattern):
            yield route, entry.callback


def all_routes() -> list[tuple[str, Any]]:
    return [(route, view) for route, view in _routes(get_resolver().url_patterns) if not route.startswith("admin/")]


def _is_open(route: str) -> bool:
    return route in OPEN or route.startswith("agent/bundles")


def test_every_route_names_a_role() -> None:
    silent = []
    for route, view in all_routes():
        cls = getattr(view, "cls", None)
        if _is_open(route):
            continue
        if cls is None:
            if getattr(view, "required_role", None) not in ROLES:
                silent.append(route)
            continue
        if RolePermission not in cls.permission_classes and not issubclass(cls.permission_classes[0], RolePermission):
            silent.append(route)
            continue
        writes = {name.upper() for name in cls.http_method_names if hasattr(cls, name)} - set(SAFE_METHODS)
        if writes and getattr(cls, "required_role", None) not in ROLES:
            silent.append(f"{route} writes without a role of its own")
    assert not silent


def test_the_open_routes_are_these_and_no_others() -> None:
    routes = {route for route, _ in all_routes()}
    assert {route for route in OPEN if not route.startswith("agent/bundles")} <= routes
    assert any(route.startswith("agent/bundles") for route in routes)


IN_RECOVERY = {
    "healthz": None, "readyz": None, "login": None, "logout": None, "backup/recovered": None, "": None,
    "^(?:api|metrics|agent/bundles)(?![^/])": None,
    "backup": OWNER, "backup/recover/upload": OWNER, "backup/recover/install": OWNER,
}  # fmt: skip
"""Every route of the recovery mode with its role. Those without one read nothing, or are the log-in."""


def test_in_recovery_mode_there_are_these_routes_and_no_others() -> None:
    found = {route: getattr(view, "required_role", None) for route, view in _routes(recovery_urls.urlpatterns)}
    assert found == IN_RECOVERY
