"""Pictures of what a person sees: adding a node from token to approved, the fleet's CA, the red banner.

They lie in ``build/pictures`` (or where ``MIRBAD_TEST_SHOTS`` says), wide and narrow, light and dark. The node enrolls
by the real join, and the key that the page shows is compared with the one that it made.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.conftest import FLAGS, ROOT, Site, _site, signed_in
from tests.figures.figure import Figure, exactly

WIDTHS = {1440: 900, 390: 844}
SCHEMES = ("light", "dark")
FOLDER = Path(os.environ.get("MIRBAD_TEST_SHOTS") or ROOT / "build" / "pictures")

_SETUP = "import django; django.setup()\n"
_ENROLL = """
import sys
from mirbad.live import invalidations
from nodes.enrollment import join
from agent.common import keys
from tests.nodes.parts import request_for
key = keys.new_key()
join.enroll(request_for(sys.argv[1], "forge", key, address="192.0.2.44"), "192.0.2.44")
invalidations.changed("nodes", "forge")
invalidations.flush()
print(keys.spki_of(key.public_key()))
"""
_IDENTITY = """
from nodes.pki import authority
authority.ensure()
"""
_CA_GOES_ON = """
from jobs import ledger, worker
from nodes.models import Node
from nodes.pki import rotation
Node.objects.update(address="127.0.0.1", port=9, is_bootstrap=True)
for _ in range(6):
    for operation_id in ledger.due_ids(kinds=("ca-rotation",)):
        worker.run_step(operation_id)
print(rotation.opened().stage)
"""


def measure() -> Iterator[Figure]:
    """One walk through each; how many pictures, and whether what they show is true."""
    chromium = next((found for name in ("chromium", "chromium-browser", "google-chrome")
                     if (found := shutil.which(name))), None)  # fmt: skip
    if chromium is None:
        yield Figure("pictures", "no Chromium is installed", "pictures", False)
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        for kind, walk in (("fleet", _adding), ("fleet", _authority), ("fenced", _banner)):
            with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder, _site(Path(folder), kind) as site:
                context = browser.new_context(viewport={"width": 1440, "height": 900})
                signed_in(context, site.url)
                page = context.new_page()
                page.set_default_timeout(20_000)
                yield from walk(site, page)
                context.close()
        browser.close()


def _adding(site: Site, page: Page) -> Iterator[Figure]:
    _inside(site, _IDENTITY)
    taken = []
    page.goto(f"{site.url}/nodes/-/add")
    page.get_by_label("Node id").fill("forge")
    page.get_by_label("Display name").fill("The forge")
    taken += _shoot(page, "add-node-1-form")
    page.get_by_role("button", name="Create join command").click()
    page.get_by_text("Waiting for the machine").wait_for()
    taken += _shoot(page, "add-node-2-token")
    spki = _inside(site, _ENROLL, page.locator("#join-token").inner_text().strip())
    page.get_by_text("Compare the fingerprint").wait_for()
    shown = "".join(page.get_by_label("Key fingerprint").inner_text().split())
    taken += _shoot(page, "add-node-3-fingerprint")
    page.get_by_role("button", name="Fingerprint matches, approve").click()
    page.get_by_text("forge has joined").wait_for()
    taken += _shoot(page, "add-node-4-approved")
    yield exactly("adding a node: the fingerprint on the page is that of the machine's key", shown == spki, True)
    yield _pictures("adding a node; from the token to approved", taken, 16)


def _authority(site: Site, page: Page) -> Iterator[Figure]:
    _inside(site, _IDENTITY)
    page.goto(f"{site.url}/pki/ca")
    page.get_by_role("heading", name="What the fleet trusts").wait_for()
    taken = _shoot(page, "ca-1-before")
    page.get_by_role("button", name="Rotate the CA").click()
    page.get_by_role("dialog").get_by_role("button", name="Rotate the CA").click()
    page.get_by_role("heading", name="CA rotation").wait_for()
    stage = _inside(site, _CA_GOES_ON)
    page.reload()
    page.get_by_text(stage).first.wait_for()
    taken += _shoot(page, "ca-2-under-way")
    page.goto(f"{site.url}/nodes/atlas/certificates")
    page.get_by_role("heading", name="CA rotation").wait_for()
    taken += _shoot(page, "ca-3-of-a-node")
    yield _pictures(f"the fleet's CA; before and at {stage}", taken, 12)


def _banner(site: Site, page: Page) -> Iterator[Figure]:
    page.goto(f"{site.url}/nodes")
    page.get_by_text("This master is fenced").wait_for()
    taken = _shoot(page, "takeover-1-banner")
    page.get_by_role("link", name="Take over…").click()
    page.get_by_text("the previous master is stopped").wait_for()
    taken += _shoot(page, "takeover-2-dialog")
    yield _pictures("the red banner and its dialog", taken, 8)


def _shoot(page: Page, name: str) -> list[str]:
    taken = []
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.screenshot(path=FOLDER / f"{name}-{width}-{scheme}.png", full_page=True)
            taken.append(f"{name}-{width}-{scheme}")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.emulate_media(color_scheme="light")
    return taken


def _pictures(name: str, taken: list[str], wanted: int) -> Figure:
    return Figure(name, f"{len(taken)} pictures in {FOLDER}", f"{wanted} pictures", len(taken) == wanted)


def _inside(site: Site, code: str, *arguments: str) -> str:
    """Run lines inside the master of `site`; the last line that they print."""
    done = subprocess.run(
        [sys.executable, "-c", _SETUP + code, *arguments],
        env={**site.environment, "DJANGO_SETTINGS_MODULE": "mirbad.settings"},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(done.stderr[-2000:])
    return (done.stdout.strip().splitlines() or [""])[-1]
