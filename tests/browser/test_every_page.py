"""Every page in a real browser: light and dark, wide and narrow; looked at by axe; screenshots kept."""

import os
import tempfile
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

pytestmark = pytest.mark.browser

PAGES = {
    "overview": "/",
    "nodes": "/nodes",
    "node-add": "/nodes/-/add",
    "node": "/nodes/atlas",
    "node-cpu": "/nodes/local",
    "node-offline": "/nodes/borealis",
    "node-pending": "/nodes/dune",
    "node-models": "/nodes/atlas/models",
    "node-certificates": "/nodes/atlas/certificates",
    "node-settings": "/nodes/atlas/settings",
    "node-commands": "/nodes/atlas/commands",
    "models": "/models",
    "model-new": "/models/-/new",
    "model-edit": "/models/qwen3-coder/edit",
    "model-ready": "/models/qwen3-14b",
    "model-starting": "/models/qwen3-coder",
    "model-failed": "/models/phi-4",
    "model-unplaced": "/models/draft-idea",
    "playground": "/playground",
    "keys": "/keys",
    "key-new": "/keys/new",
    "operations": "/operations",
    "downloads": "/downloads",
    "download-new": "/downloads/new",
    "folders": "/folders?node=atlas",
    "catalog": "/catalog?node=atlas",
    "audit": "/audit",
    "ca": "/pki/ca",
    "tokens": "/tokens",
    "token-new": "/tokens/new",
}
SHOTS = Path(os.environ.get("MIRBAD_TEST_SHOTS") or tempfile.mkdtemp(prefix="mirbad-shots-"))
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


WIDTHS = {1440: 900, 390: 844}
SCHEMES = ("light", "dark")


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


def _told(item: dict, node: dict) -> str:
    return f"{item['id']}: {node['html'][:120]} {node.get('failureSummary', '')[-180:]}"
