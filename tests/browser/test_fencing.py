"""The red banner and its dialogs in a real browser: light and dark, wide and narrow."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import Watch, signed_in
from tests.browser.looks import RULES, SCHEMES, SHOTS, WIDTHS, require_no_scrolling, told

pytestmark = pytest.mark.browser


@pytest.fixture
def open_fenced(fenced_site, browser):
    """A function: a signed-in owner's page of a fenced master; where it is watched, nothing wrong may happen in it."""
    opened = []

    def make(*, watched):
        context, watch = browser.new_context(viewport={"width": 1440, "height": 900}), Watch(fenced_site.url)
        opened.append((context, watch))
        signed_in(context, fenced_site.url)
        if watched:
            watch.over(context)
        page = context.new_page()
        page.goto(f"{fenced_site.url}/nodes")
        page.get_by_text("This master is fenced").wait_for()
        return page

    yield make
    for context, watch in opened:
        context.close()
        assert watch.wrong == []


def look(page, name):
    """Keep pictures of the page as it is; what axe finds."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    found = []
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        require_no_scrolling(page, name, width)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=SHOTS / f"{name}-{width}-{scheme}.png")
            violations = Axe().run(page, options=RULES).response["violations"]
            found += [f"{width} {scheme} {told(item, node)}" for item in violations for node in item["nodes"]]
    page.set_viewport_size({"width": 1440, "height": 900})
    return found


def test_the_banner_and_its_dialogs(open_fenced):
    # Looked at without the watch: axe itself sets styles that the policy forbids.
    page = open_fenced(watched=False)
    assert look(page, "fencing-banner") == []
    page.get_by_role("link", name="Continue takeover for").click()
    page.get_by_role("textbox", name="to confirm").wait_for()
    assert look(page, "fencing-continue") == []
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("link", name="Take over…").click()
    page.get_by_text("the previous master is stopped").wait_for()
    assert look(page, "fencing-takeover") == []

    page = open_fenced(watched=True)
    page.get_by_role("link", name="Continue takeover for").click()
    box = page.get_by_role("textbox", name="to confirm")
    box.wait_for()
    assert box.evaluate("field => field === document.activeElement")
    box.fill("another")
    page.get_by_role("button", name="Continue takeover").click()
    page.locator("#fencing-dialog .refusal").get_by_text("confirmation_required").wait_for()
    page.get_by_role("button", name="Cancel").click()
    assert not page.locator("#fencing-dialog").is_visible()
    assert page.url.endswith("/nodes")

    page.get_by_role("link", name="Take over…").click()
    page.get_by_text("the previous master is stopped").wait_for()
    page.get_by_role("textbox", name="to confirm").fill("the previous master is stopped")
    page.get_by_role("button", name="Take over").click()
    page.get_by_text("Takeover in progress").wait_for()
    assert not page.locator("#fencing-dialog").is_visible()
    assert page.get_by_role("link", name="Take over…").count() == 0
