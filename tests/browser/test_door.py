"""Logging in, in a browser: wrong, too often, and right."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.conftest import signed_in
from tests.browser.looks import RULES, SHOTS

pytestmark = pytest.mark.browser


def _clean(page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 844})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=SHOTS / f"{name}-{width}-{scheme}.png")
            assert Axe().run(page, options=RULES).response["violations"] == []


def test_the_door(empty_site, browser):
    context = browser.new_context()
    signed_in(context, empty_site.url)
    page = context.new_page()
    for path, name in (("/", "empty-overview"), ("/nodes", "empty-nodes"), ("/models", "empty-models")):
        page.goto(empty_site.url + path)
        _clean(page, name)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    _clean(page, "login")
    page.goto(f"{empty_site.url}/nodes")
    assert "next=/nodes" in page.url
    for _ in range(5):
        page.get_by_label("Name").fill("owner")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("Wrong user name or password")
    _clean(page, "login-wrong")
    page.get_by_label("Password").fill("wrong")
    with page.expect_response(lambda answer: answer.request.method == "POST") as answer:
        page.get_by_role("button", name="Log in").click()
    assert answer.value.status == 429
    expect(page.get_by_role("heading", name="Too many attempts")).to_be_visible()
    _clean(page, "login-429")
    context.close()


def test_an_address_that_leads_nowhere(site, browser):
    page = browser.new_page()
    page.goto(f"{site.url}/no/such/page")
    expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
    _clean(page, "not-found")
    page.close()
