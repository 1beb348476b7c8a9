"""A node of eight cards in a browser: one is lost, one has a slow link, one is in slices, one tells hardly anything."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.browser.conftest import Site, Watch, _chromium, _site, signed_in
from tests.browser.looks import look_at

pytestmark = pytest.mark.browser

PAGES = {
    "gpus": "/nodes/octo/gpus",
    "gpus-history": "/nodes/octo/history?hours=24",
    "gpus-dashboard": "/dashboard",
    "gpus-dashboard-node": "/dashboard?node=octo",
    "gpus-overview": "/?node=octo",
}


@pytest.fixture(scope="module")
def cards_site(tmp_path_factory) -> Iterator[Site]:
    _chromium()
    with _site(tmp_path_factory.mktemp("cards"), "cards") as running:
        yield running


@pytest.fixture(scope="module")
def session(cards_site, browser) -> dict:
    with contextlib.closing(browser.new_context()) as context:
        signed_in(context, cards_site.url)
        return context.storage_state()


@pytest.mark.parametrize("name", PAGES)
def test_page(cards_site, browser, session, name):
    context = browser.new_context(viewport={"width": 1440, "height": 900}, storage_state=session)
    watch = Watch(cards_site.url)
    watch.over(context)
    page = context.new_page()
    page.goto(cards_site.url + PAGES[name])
    found = look_at(page, name)
    context.close()
    assert not found, "\n".join(found)
    assert watch.wrong == []
