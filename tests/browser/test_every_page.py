"""Every page in a real browser: light and dark, wide and narrow; looked at by axe; screenshots kept."""

import pytest

from tests.browser.looks import look_at

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


@pytest.mark.parametrize("name", PAGES)
def test_page(open_page, name):
    page = open_page(PAGES[name])
    assert look_at(page, name) == []
