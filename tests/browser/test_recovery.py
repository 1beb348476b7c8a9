"""The recovery of a fleet in a browser: an empty master, a wrong passphrase, the preview, the restart, the log-in."""

import re
import subprocess
import sys

import pytest
from playwright.sync_api import expect

from tests.browser.looks import SHOTS, look_at
from tests.e2e.fleet import ROOT, Fleet
from tests.jobs.backup.fleet import PASSPHRASE

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

_MAKE = """
import sys, django; django.setup()
from datetime import timedelta
from pathlib import Path
from django.core.management import call_command
call_command("migrate", verbosity=0, interactive=False)
from jobs.backup import making
from mirbad.kernel import clock
from mirbad.kernel.actor import CONFIG
from nodes.models import Node, NodePin
from tests.jobs.backup.fleet import PASSPHRASE, fill
fill()
Node.objects.create(pk="pc-2", address="192.0.2.9", lifecycle="pending")
old = Node.objects.create(pk="pc-3", address="192.0.2.10", lifecycle="approved")
past = clock.now() - timedelta(days=9)
NodePin.objects.create(node=old, slot=NodePin.CURRENT, spki_sha256="c" * 64, cert_pem="PEM", cert_not_after=past)
making.create(Path(sys.argv[1]), PASSPHRASE, CONFIG)
"""


@pytest.fixture(scope="module")
def backup(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    (folder / "data" / "static").mkdir(parents=True)
    fleet = Fleet(folder, MIRBAD_SECRET_KEY="a secret of the test, sealed with nothing real")
    environ = {**fleet.environ, "DJANGO_SETTINGS_MODULE": "mirbad.settings"}
    subprocess.run([sys.executable, "-c", _MAKE, str(folder / "monday.zip")], cwd=ROOT, env=environ, check=True)
    return folder / "monday.zip"


def test_a_fleet_is_recovered_by_a_person(backup, browser, tmp_path):
    fleet = Fleet(tmp_path, MIRBAD_RECOVERY_MODE="fleet-restore")
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(30_000)
    try:
        fleet.start()
        page.goto(f"{fleet.url}/nodes")
        assert "/login?next=/backup" in page.url
        _log_in(page, fleet)
        expect(page.get_by_role("alert")).to_contain_text("Recovery mode.")
        assert look_at(page, "recovery-empty") == []
        _upload(page, backup, "another passphrase")
        expect(page.get_by_text("backup_unsuitable")).to_be_visible()
        assert look_at(page, "recovery-wrong-passphrase") == []
        _upload(page, backup, PASSPHRASE)
        expect(page.get_by_role("heading", name="monday.zip")).to_be_visible()
        expect(page.get_by_role("row", name=re.compile("pc-2"))).to_contain_text("Never enrolled")
        expect(page.get_by_role("row", name=re.compile("pc-3"))).to_contain_text("certificate has expired")
        assert look_at(page, "recovery-preview") == []
        button = page.get_by_role("button", name="Install backup and restart")
        button.click()
        assert "/backup?upload=" in page.url, "the browser asks for the tick first"
        page.get_by_label("The previous master is stopped").check()
        button.click()
        expect(page.get_by_role("heading", name="The backup is installed")).to_be_visible()
        page.screenshot(path=SHOTS / "recovery-installed.png")
        page.wait_for_url("**/backup/recovered", timeout=120_000)  # the admin is not in this backup: still logged in
        expect(page.locator("#fencing")).to_contain_text("MIRBAD_RECOVERY_MODE=fleet-restore is still set")
        fleet.wait_for_line("Stop with Ctrl-C.", 200)
        expect(page.get_by_role("heading", name="Recovered from monday.zip")).to_be_visible()
        assert look_at(page, "recovery-recovered") == []
    finally:
        context.close()
        fleet.close()


def _log_in(page, fleet):
    page.get_by_label("User name").fill("admin")
    page.get_by_label("Password").fill((fleet.data / "secrets" / "admin-password").read_text().strip())
    page.get_by_role("button", name="Log in").click()


def _upload(page, backup, passphrase):
    page.get_by_label("Backup file").set_input_files(backup)
    page.get_by_label("Passphrase of the backup").fill(passphrase)
    page.get_by_role("button", name="Upload and check").click()
