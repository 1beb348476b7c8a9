"""The pages of backups in a real browser: by axe, wide and narrow. A passphrase never returns to one."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Watch, _site, signed_in
from tests.browser.looks import look_at

pytestmark = pytest.mark.browser

PAGES = {
    "backups": "/backup",
    "backup-new": "/backup/new",
    "backup-destination-folder": "/backup/-/to/new/folder",
    "backup-destination-smb": "/backup/-/to/new/smb",
    "backup-destination-s3": "/backup/-/to/new/s3",
    "backup-destination-edit": "/backup/-/to/2",
    "backup-overview": "/",
}


@pytest.fixture(scope="module")
def backup_site(tmp_path_factory):
    with _site(tmp_path_factory.mktemp("backups"), "backups") as running:
        yield running


@pytest.fixture(scope="module")
def session(backup_site, browser):
    context = browser.new_context()
    signed_in(context, backup_site.url)
    state = context.storage_state()
    context.close()
    return state


@pytest.fixture
def open_backups(backup_site, browser, session):
    """A function: a page of an owner; afterwards nothing wrong may have happened in it."""
    opened = []

    def make(path):
        context = browser.new_context(viewport={"width": 1440, "height": 900}, storage_state=session)
        watch = Watch(backup_site.url)
        watch.over(context)
        opened.append((context, watch))
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.goto(backup_site.url + path)
        return page

    yield make
    for context, watch in opened:
        context.close()
        assert watch.wrong == []


@pytest.mark.parametrize("name", PAGES)
def test_page(open_backups, name):
    page = open_backups(PAGES[name])
    assert look_at(page, name) == []


def test_a_passphrase_that_does_not_match_is_refused_and_not_rendered_back(open_backups):
    page = open_backups("/backup/new")
    page.get_by_label("Passphrase", exact=True).fill("correct horse battery staple")
    page.get_by_label("Passphrase again").fill("correct horse battery stable")
    page.get_by_role("button", name="Make backup").click()
    expect(page.get_by_text("The passphrases do not match.")).to_be_visible()
    expect(page.get_by_label("Passphrase", exact=True)).to_have_value("")
    assert "correct horse" not in page.content()


def test_a_backup_is_asked_for_and_listed_at_once(open_backups):
    page = open_backups("/backup/new")
    page.get_by_label("Passphrase", exact=True).fill("correct horse battery staple")
    page.get_by_label("Passphrase again").fill("correct horse battery staple")
    page.get_by_role("button", name="Make backup").click()
    expect(page.get_by_text("The backup is being made.")).to_be_visible()
    expect(page.get_by_role("link", name="Progress")).to_have_count(2)


def test_a_folder_that_is_not_there_is_refused_where_it_was_tried(open_backups):
    page = open_backups("/backup")
    page.locator("#destination-1").get_by_role("button", name="Try it").click()
    expect(page.get_by_text("is not a folder of the master's machine")).to_be_visible()
    page.locator("#destination-1").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_contain_text("The files there stay")


def test_a_backup_is_downloaded(open_backups):
    page = open_backups("/backup")
    with page.expect_download() as found:
        page.get_by_role("link", name="Download mirbad-").first.click()
    assert found.value.suggested_filename.startswith("mirbad-2026")
    assert found.value.path().read_bytes() == b"a backup"
