"""Pages of a fleet in trouble, looked at by axe; screenshots kept."""

from collections.abc import Iterator

import pytest

from tests.browser.conftest import Site, Watch, _chromium, _site, signed_in
from tests.browser.looks import look_at

pytestmark = pytest.mark.browser

PAGES = {
    "trouble-audit": "/audit",
    "trouble-accept-log": "/audit/-/witnesses/accept",
    "trouble-engine": "/nodes/atlas/models",
    "trouble-stand-down": "/fencing/stand-down",
    "trouble-folders": "/folders?node=atlas",
}


@pytest.fixture(scope="module")
def troubled_site(tmp_path_factory) -> Iterator[Site]:
    _chromium()
    with _site(tmp_path_factory.mktemp("trouble"), "trouble") as running:
        yield running


@pytest.fixture(scope="module")
def context(troubled_site, browser):
    made = browser.new_context()
    signed_in(made, troubled_site.url)
    yield made
    made.close()


@pytest.mark.parametrize("name", PAGES)
def test_page(troubled_site, context, name):
    page = context.new_page()
    page.goto(troubled_site.url + PAGES[name])
    assert look_at(page, name) == []
    page.close()


def test_a_form_whose_cookie_is_gone_is_refused_with_what_to_do(troubled_site, browser):
    context, watch = browser.new_context(), Watch(troubled_site.url)
    watch.over(context)
    page = context.new_page()
    page.goto(f"{troubled_site.url}/login")
    page.get_by_label("Name").fill("owner")
    page.get_by_label("Password").fill("x")
    context.clear_cookies()
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Form refused").wait_for()
    assert watch.wrong == []
    assert look_at(page, "trouble-form-refused") == []
    context.close()
