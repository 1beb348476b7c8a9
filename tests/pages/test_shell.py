"""Common parts of every answer of the pages."""

import re
from pathlib import Path

import pytest

from tests.pages import seed
from tests.pages.markup import compact

pytestmark = pytest.mark.app
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", ["/", "/login", "/nodes", "/no/such/page", "/api/docs"])
def test_every_answer_has_the_policy(db, viewer, path):
    answer = viewer.client.get(path)
    answer.close()
    policy = answer["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")


@pytest.mark.parametrize(
    ("host", "secure", "sent"),
    [
        ("127.0.0.1:8080", False, True),
        ("localhost", False, True),
        ("[::1]:8080", False, True),
        ("192.0.2.7", False, False),
        ("192.0.2.7", True, True),
    ],
)
def test_the_opener_policy_is_sent_where_browsers_heed_it(db, client, settings, host, secure, sent):
    settings.ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]", "192.0.2.7"]
    answer = client.get("/login", headers={"host": host}, secure=secure)
    assert answer.status_code == 200
    assert (answer.headers.get("Cross-Origin-Opener-Policy") == "same-origin") is sent


def test_no_page_holds_script_or_style_of_its_own():
    templates = list((ROOT / "templates").rglob("*.html"))
    assert len(templates) > 100
    for template in templates:
        text = template.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), template
        assert not re.search(r"<style|\sstyle=|\son\w+=|hx-on|js:", text), template


def test_nothing_comes_from_another_host():
    files = [*(ROOT / "templates").rglob("*.html"), *(ROOT / "mirbad/static/mirbad").glob("app.*")]
    assert len(files) > 100
    for file in files:
        found = re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", file.read_text())
        assert [url for url in found if not url.endswith("www.w3.org")] == [], file


def test_pages_are_kept_in_no_shared_cache(db, viewer):
    seed.fleet()
    answer = viewer.client.get("/models")
    assert answer["Cache-Control"] == "no-cache, private"
    assert "HX-Request" in answer["Vary"]


def test_the_navigation_says_where_one_is(db, viewer):
    seed.fleet()
    for path, name in (
        ("/", "Overview"),
        ("/nodes/atlas/models", "Nodes"),
        ("/models/phi-4", "Models"),
        ("/playground", "Playground"),
        ("/keys", "API keys"),
        ("/operations", "Operations"),
        ("/audit", "Audit"),
    ):
        text = compact(viewer.client.get(path).content)
        [here] = re.findall(r'aria-current="page">(?:<svg.*?</svg>)([^<]+)</a></li>', text)
        assert here == name


def test_an_odd_theme_cookie_is_ignored(db, viewer):
    viewer.client.cookies["mirbad-theme"] = '"><script>'
    assert 'data-theme="auto"' in viewer.client.get("/nodes").content.decode()


def test_text_from_machines_is_text(db, viewer):
    hostile = "<img src=x onerror=alert(1)>"
    seed.node("evil", hostile, reachability="offline", reachability_reason=hostile)
    seed.model("evil", "evil", name=hostile)
    seed.seen("evil", "failed", reason=hostile, lastLines=[hostile], reasonCode=hostile)
    seed.operation("evil", outcome="failed", error={"code": hostile, "detail": hostile, "lines": [hostile]})
    seed.audit_log.record("node.join-token", seed.ADMIN, node_id="a/b", target=hostile, detail=hostile)
    for path in (
        "/",
        "/nodes",
        "/nodes/evil",
        "/models",
        "/models/evil",
        "/operations",
        "/audit",
        "/models/-/node-cells",
    ):
        assert "<img src=x" not in viewer.client.get(path).content.decode()
