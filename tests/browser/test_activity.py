"""The drawer of what happens now: on every page, by keyboard, on a telephone, kept up to date; the drain's choice."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.looks import RULES, SHOTS

pytestmark = pytest.mark.browser


def look(page, name: str) -> None:
    """Pictures in both schemes; axe finds nothing."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=SHOTS / f"{name}-{page.viewport_size['width']}-{scheme}.png")
        violations = Axe().run(page, options=RULES).response["violations"]
        found += [f"{scheme} {item['id']}: {node['html'][:160]}" for item in violations for node in item["nodes"]]
    assert found == []


@pytest.mark.parametrize("width", [1440, 390])
def test_the_drawer_opens_and_closes_by_keyboard(open_page, width):
    page = open_page("/models", width=width)
    button = page.locator('[popovertarget="activity"]:visible').first
    expect(button.locator(".count")).to_have_text(re.compile(r"^[1-9]"))
    drawer = page.locator("#activity")
    expect(drawer).to_be_hidden()
    button.focus()
    page.keyboard.press("Enter")
    expect(drawer).to_be_visible()
    expect(page.locator("#activity-title")).to_be_focused()
    expect(drawer).to_contain_text("Start qwen3-coder")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    look(page, "activity")
    page.keyboard.press("Escape")
    expect(drawer).to_be_hidden()
    expect(button).to_be_focused()


def test_what_the_drawer_counts_is_said_to_a_screen_reader(open_page):
    page = open_page("/audit")
    expect(page.locator("#activity-words")).to_have_text(re.compile(r"^[1-9]\d* operations? in progress$"))
    assert page.locator("#activity-words").get_attribute("role") == "status"


@pytest.mark.parametrize("width", [1440, 390])
def test_the_drain_offers_to_move_the_models_off(open_page, width):
    page = open_page("/nodes/-/drain/atlas", width=width)
    expect(page.get_by_role("radio", name="Leave them")).to_be_checked()
    page.get_by_role("radio", name="Move them to other nodes, one at a time").check()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    look(page, "drain")
    page.go_back()


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize(("name", "path"), [("node-operations", "/nodes/atlas/operations")])
def test_the_operations_of_a_node(open_page, width, name, path):
    page = open_page(path, width=width)
    expect(page.locator("#node-history")).to_contain_text("In progress")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    look(page, name)
