"""The pages of models on several nodes, looked at by axe; screenshots kept."""

import pytest
from playwright.sync_api import expect

from tests.browser.looks import look_at

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
    assert look_at(page, name) == []


def test_a_node_that_cannot_hold_the_replica_is_disabled_and_a_refusal_is_shown_in_the_form(open_page):
    page = open_page("/models/chat-alone/replicas/add")
    expect(page.get_by_label("Atlas")).to_be_disabled()
    page.get_by_role("button", name="Add replica").click()
    expect(page.locator(".refusal")).to_contain_text("Name at least one node")
