"""The pages of a move and of an unplace, looked at by axe; screenshots kept."""

import pytest
from playwright.sync_api import expect

from tests.browser.looks import look_at

pytestmark = pytest.mark.browser

PAGES = {
    "move-new": "/models/settled/move",
    "move-downloading": "/models/smollm2-1.7b/move",
    "move-paused": "/models/stranded/move",
    "move-refused": "/models/refused/move",
    "unplace": "/models/settled/unplace",
}


@pytest.fixture(scope="module", autouse=True)
def _moves(site):
    site.happen("moves")


@pytest.mark.parametrize("name", PAGES)
def test_page(open_page, name):
    page = open_page(PAGES[name])
    assert look_at(page, name) == []


def test_a_refusal_is_shown_where_the_person_acted_and_the_menu_leads_there(open_page):
    page = open_page("/models/settled")
    page.get_by_role("button", name="More for Settled 1B").click()
    page.get_by_role("link", name="Unplace…").click()
    page.get_by_label("Type settled to confirm").fill("another")
    page.get_by_role("button", name="Unplace Settled 1B").click()
    expect(page.locator(".refusal")).to_contain_text("confirmation_required")
    page.goto(page.url.replace("/models/settled/unplace", "/models/stranded/move"))
    page.get_by_label("Type borealis to confirm").fill("atlas")
    page.get_by_role("button", name="Force-commit to local").click()
    expect(page.locator(".refusal")).to_contain_text("Type borealis to confirm")
