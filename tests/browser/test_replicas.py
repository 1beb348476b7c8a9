"""The pages of models on several nodes, looked at by axe; screenshots kept."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.browser.test_every_page import RULES, SCHEMES, SHOTS, WIDTHS, _told

pytestmark = pytest.mark.browser

PAGES = {
    "replicas-alone": "/models/chat-small",
    "replicas-together": "/models/chat-huge",
    "replica-add": "/models/chat-alone/replicas/add",
    "model-alone": "/models/chat-alone",
}


@pytest.fixture(scope="module", autouse=True)
def _spread(site):
    site.happen("spread")


@pytest.mark.parametrize("name", PAGES)
def test_page(open_page, name):
    page = open_page(PAGES[name])
    page.wait_for_load_state("networkidle")
    SHOTS.mkdir(parents=True, exist_ok=True)
    found = []
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"it scrolls sideways at {width}"
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=SHOTS / f"{name}-{width}-{scheme}.png", full_page=True)
            violations = Axe().run(page, options=RULES).response["violations"]
            found += [f"{width} {scheme} {_told(item, node)}" for item in violations for node in item["nodes"]]
    assert found == []


def test_nodes_that_cannot_share_a_replica_are_told_in_the_form(open_page):
    page = open_page("/models/chat-alone/replicas/add")
    page.get_by_label("Slope").check()
    page.get_by_label("Atlas").check()
    page.get_by_role("button", name="Add the replica").click()
    expect(page.locator(".refusal")).to_contain_text("placement_invalid")
