"""Every route of the master against every person: who may, who may not, and no route forgotten."""

import json
import re
from collections.abc import Iterator

import pytest
from django.contrib.admin.sites import AdminSite
from django.urls import URLPattern, URLResolver, get_resolver

from mirbad.accounts.models import AdminToken

pytestmark = [pytest.mark.app, pytest.mark.django_db]

# (method, path, lowest role). Bodies are such that a permitted call changes as little as it can.
REPLICA = "00000000-0000-4000-8000-000000000001"

ROUTES = [
    ("GET", "/api/schema", "viewer"),
    ("GET", "/api/status", "viewer"),
    ("GET", "/api/audit", "viewer"),
    ("GET", "/api/audit/checkpoint", "viewer"),
    ("GET", "/api/audit/proof", "viewer"),
    ("GET", "/api/fencing", "viewer"),
    ("POST", "/api/fencing/takeover", "operator"),
    ("POST", "/api/fencing/takeover/continue", "operator"),
    ("POST", "/api/fencing/stand-down", "owner"),
    ("GET", "/api/audit/witnesses", "viewer"),
    ("POST", "/api/audit/witnesses/accept", "owner"),
    ("GET", "/api/pki/ca-rotation", "viewer"),
    ("POST", "/api/pki/ca-rotation", "operator"),
    ("POST", "/api/pki/ca-replacement", "owner"),
    ("POST", "/api/backups/imports", "owner"),
    ("GET", "/api/backups/imports/none", "owner"),
    ("DELETE", "/api/backups/imports/none", "owner"),
    ("POST", "/api/backups/imports/none/preview", "owner"),
    ("POST", "/api/backups/imports/none/confirm", "owner"),
    ("GET", "/api/nodes", "viewer"),
    ("GET", "/api/nodes/pc-1", "viewer"),
    ("PATCH", "/api/nodes/pc-1", "operator"),
    ("POST", "/api/nodes/join-tokens", "operator"),
    ("DELETE", "/api/nodes/pc-1/join-tokens", "operator"),
    ("POST", "/api/nodes/pc-1/approve", "operator"),
    ("POST", "/api/nodes/pc-1/reject", "operator"),
    ("POST", "/api/nodes/pc-1/drain", "operator"),
    ("POST", "/api/nodes/pc-1/undrain", "operator"),
    ("DELETE", "/api/nodes/pc-1", "operator"),
    ("POST", "/api/nodes/pc-1/rotate-cert", "operator"),
    ("POST", "/api/nodes/pc-1/readmit", "operator"),
    ("GET", "/api/models", "viewer"),
    ("POST", "/api/models", "operator"),
    ("GET", "/api/models/small", "viewer"),
    ("PUT", "/api/models/small", "operator"),
    ("DELETE", "/api/models/none", "operator"),
    ("POST", "/api/models/small/start", "operator"),
    ("POST", "/api/models/small/stop", "operator"),
    ("POST", "/api/models/small/restart", "operator"),
    ("POST", "/api/models/small/replicas", "operator"),
    ("GET", f"/api/models/small/replicas/{REPLICA}", "viewer"),
    ("DELETE", f"/api/models/small/replicas/{REPLICA}", "operator"),
    ("POST", f"/api/models/small/replicas/{REPLICA}/start", "operator"),
    ("POST", f"/api/models/small/replicas/{REPLICA}/stop", "operator"),
    ("POST", f"/api/models/small/replicas/{REPLICA}/restart", "operator"),
    ("GET", "/api/models/small/move", "viewer"),
    ("POST", "/api/models/small/move", "operator"),
    ("POST", "/api/models/small/move/cancel", "operator"),
    ("POST", "/api/models/small/move/force-commit", "operator"),
    ("POST", "/api/models/none/unplace", "operator"),
    ("GET", "/api/models/none/logs", "viewer"),
    ("GET", "/api/operations", "viewer"),
    ("GET", "/api/operations/{operation}", "viewer"),
    ("DELETE", "/api/operations/op-none", "operator"),
    ("GET", "/api/nodes/pc-1/gpus", "viewer"),
    ("GET", "/api/nodes/pc-1/telemetry", "viewer"),
    ("GET", "/api/nodes/pc-1/images", "viewer"),
    ("POST", "/api/nodes/pc-1/images/pull", "operator"),
    ("GET", "/api/downloads", "viewer"),
    ("POST", "/api/downloads", "operator"),
    ("POST", "/api/downloads/inspect", "operator"),
    ("DELETE", "/api/downloads/op-none", "operator"),
    ("GET", "/api/model-folders", "viewer"),
    ("DELETE", "/api/model-folders/none", "operator"),
    ("GET", "/api/model-folders/none/gguf", "viewer"),
    ("GET", "/api/catalog", "viewer"),
    ("GET", "/api/nodes/pc-1/fit", "viewer"),
    ("POST", "/api/nodes/pc-1/fit", "operator"),
    ("POST", "/api/placements", "operator"),
    ("POST", "/api/placements/plan", "operator"),
    ("GET", "/api/keys", "viewer"),
    ("POST", "/api/keys", "operator"),
    ("GET", "/api/keys/{key}", "viewer"),
    ("PATCH", "/api/keys/{key}", "operator"),
    ("POST", "/api/keys/{key}/rotate", "operator"),
    ("DELETE", "/api/keys/{key}", "operator"),
    ("GET", "/api/usage", "viewer"),
    ("GET", "/api/tokens", "owner"),
    ("POST", "/api/tokens", "owner"),
    ("DELETE", "/api/tokens/12345", "owner"),
    ("GET", "/api/backups", "owner"),
    ("POST", "/api/backups", "owner"),
    ("GET", "/api/backups/12345", "owner"),
    ("DELETE", "/api/backups/12345", "owner"),
    ("GET", "/api/backups/12345/download", "owner"),
    ("GET", "/api/backups/destinations", "owner"),
    ("POST", "/api/backups/destinations", "owner"),
    ("GET", "/api/backups/destinations/12345", "owner"),
    ("PATCH", "/api/backups/destinations/12345", "owner"),
    ("DELETE", "/api/backups/destinations/12345", "owner"),
    ("POST", "/api/backups/destinations/12345/try", "owner"),
    ("GET", "/metrics", "viewer"),
]
RANK = {"stranger": 0, "viewer": 1, "operator": 2, "owner": 3}
AWAY = {"node_offline"}
"""Codes that a permitted call to a node may return: the node of these tests does not exist."""

REFUSED = {"forbidden", "unauthenticated", "csrf_failed"}


def call(client, method, path):
    return client.generic(method, path, json.dumps({}), content_type="application/json")


def code_of(response):
    return response.json()["code"] if "problem" in response.get("Content-Type", "") else ""


@pytest.mark.parametrize(("method", "path", "role"), ROUTES, ids=[f"{m} {p}" for m, p, _ in ROUTES])
def test_a_route_opens_to_its_role_and_to_no_lower_one(method, path, role, people, anybody, fleet, identity):
    path = path.format(operation=fleet.operation.pk, key=fleet.key.pk)
    for name in ("stranger", "viewer", "operator", "owner"):
        response = call(people[name].client, method, path)
        if RANK[name] >= RANK[role]:
            assert code_of(response) not in REFUSED, (name, response.content)
            assert response.status_code < 500 or code_of(response) in AWAY, (name, response.content)
        else:
            assert (response.status_code, code_of(response)) == (403, "forbidden"), name
    response = call(anybody, method, path)
    assert (response.status_code, code_of(response)) == (401, "unauthenticated")


@pytest.mark.parametrize(("method", "path", "role"), ROUTES, ids=[f"{m} {p}" for m, p, _ in ROUTES])
def test_an_admin_token_has_the_rights_of_its_role(method, path, role, with_token, fleet, identity):
    path = path.format(operation=fleet.operation.pk, key=fleet.key.pk)
    for name in ("viewer", "operator", "owner"):
        response = call(with_token(name), method, path)
        assert (code_of(response) == "forbidden") == (RANK[name] < RANK[role]), (name, response.content)
    assert AdminToken.objects.exists()


def patterns(resolver: URLResolver, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for entry in resolver.url_patterns:
        route = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from patterns(entry, route)
        else:
            yield route, entry


OPEN = {"healthz", "readyz", "login", "logout", "admin/login/", "agent/bundles", "agent/bundles/<slug:rid>.tar.gz"}
"""Routes open to strangers: health, login and logout, and the agent's archive."""


def test_every_route_states_its_role():
    without = []
    for route, pattern in patterns(get_resolver()):
        view = pattern.callback
        if route in OPEN or isinstance(getattr(view, "admin_site", None), AdminSite) or route.startswith("admin/"):
            continue
        owner = getattr(view, "cls", None) or getattr(view, "view_class", None) or view
        if route == "api/schema":
            assert "RolePermission" in str(owner.permission_classes)
            continue
        if not (hasattr(view, "required_role") or hasattr(owner, "required_role")):
            without.append(route)
    assert not without


def test_every_route_of_the_api_stands_in_the_table():
    known = {re.sub(rf"\{{\w+\}}|pc-1|small|{REPLICA}|none|op-none|12345", "*", path) for _, path, _ in ROUTES}
    missing = []
    for route, _ in patterns(get_resolver()):
        path = "/" + re.sub(r"<\w+:\w+>", "*", route)
        if (
            path.startswith("/api/")
            and path != "/api/docs"
            and path.replace("op-*", "*") not in {item.replace("op-*", "*") for item in known}
        ):
            missing.append(path)
    assert not missing


def test_the_page_of_the_api_is_for_people_who_may_look(viewer, stranger, anybody):
    page = viewer.client.get("/api/docs")
    assert page.status_code == 200
    assert "swagger-ui" in page.content.decode()
    assert stranger.client.get("/api/docs").status_code == 403
    assert anybody.get("/api/docs")["Location"] == "/login?next=/api/docs"


def test_the_page_of_the_api_needs_nothing_inline_and_nothing_from_elsewhere(viewer):
    page = viewer.client.get("/api/docs")
    text = page.content.decode()
    assert "script-src 'self'" in page["Content-Security-Policy"]
    assert not re.search(r"<style|style=|<script>|onload=|https?://", text)
    script = viewer.client.get("/api/docs?script=")
    assert script["Content-Type"].startswith("application/javascript")
    assert "SwaggerUIBundle" in script.content.decode()
