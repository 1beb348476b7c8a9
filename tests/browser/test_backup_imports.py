"""The import of a backup in a real browser, from the upload to the operation; looked at by axe, screenshots kept."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Site, Watch, _chromium, _site, signed_in
from tests.browser.looks import look_at

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def backed_up_site(tmp_path_factory) -> Iterator[Site]:
    _chromium()
    with _site(tmp_path_factory.mktemp("backup"), "backup") as running:
        yield running


@pytest.mark.timeout(180)
def test_an_import_from_the_upload_to_its_operation(backed_up_site, browser):
    context, watch = browser.new_context(), Watch(backed_up_site.url)
    signed_in(context, backed_up_site.url)
    watch.over(context)
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.goto(f"{backed_up_site.url}/backup/import")
    assert look_at(page, "import-upload") == []
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_label("Backup file").set_input_files(f"{backed_up_site.environment['MIRBAD_DATA']}/fleet.backup")
    page.get_by_label("Passphrase").fill("another passphrase")
    page.get_by_role("button", name="Upload and preview").click()
    expect(page.locator(".notice.error")).to_contain_text("the passphrase is another one")
    page.get_by_label("Backup file").set_input_files(f"{backed_up_site.environment['MIRBAD_DATA']}/fleet.backup")
    page.get_by_label("Passphrase").fill("correct horse battery staple")
    page.get_by_role("button", name="Upload and preview").click()
    expect(page.get_by_text("Name only")).to_be_visible()
    expect(page.get_by_role("button", name="Import", exact=True)).to_be_disabled()
    assert look_at(page, "import-preview") == []
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_label("Target of the models of borealis").select_option("local")
    page.get_by_label("Restore start times").focus()
    page.get_by_role("button", name="Preview again").click()
    expect(page.get_by_role("button", name="Import", exact=True)).to_be_enabled()
    expect(page.get_by_label("Target of the models of borealis")).to_have_value("local")
    assert look_at(page, "import-resolved") == []
    page.set_viewport_size({"width": 1440, "height": 900})
    # What was not previewed is shown first, in place.
    page.get_by_label("Target of the models of borealis").select_option("unplaced")
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.locator(".notice.error")).to_contain_text("Something else would be written now")
    page.get_by_role("button", name="Import", exact=True).click()
    page.wait_for_url("**/operations/op-*")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Configuration import of fleet.backup")
    expect(page.get_by_text("It is restored unplaced, as chosen.").first).to_be_visible()
    assert look_at(page, "import-operation") == []
    assert watch.wrong == []
    context.close()
