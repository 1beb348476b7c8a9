"""Looks at a page: wide and narrow, light and dark, by axe; a screenshot of each is kept."""

import os
import tempfile
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.waiting import until

SHOTS = Path(os.environ.get("MIRBAD_TEST_SHOTS") or tempfile.mkdtemp(prefix="mirbad-shots-"))
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
WIDTHS = {1440: 900, 390: 844}
SCHEMES = ("light", "dark")


def require_no_scrolling(page: Page, name: str, width: int) -> None:
    """Raise unless the page fits in `width` once it has taken it: what scripts lay out follows a moment later."""
    until(
        lambda: page.evaluate("document.documentElement.scrollWidth") <= width,
        f"{name} to fit, but it scrolls sideways at {width}", 5,
    )  # fmt: skip


def look_at(page: Page, name: str) -> list[str]:
    """Return axe's findings in all looks at `page`; screenshots are named by `name`. It may not scroll sideways."""
    page.wait_for_load_state("networkidle")
    SHOTS.mkdir(parents=True, exist_ok=True)
    found = []
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        require_no_scrolling(page, name, width)
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=SHOTS / f"{name}-{width}-{scheme}.png", full_page=True)
            violations = Axe().run(page, options=RULES).response["violations"]
            found += [f"{width} {scheme} {told(item, node)}" for item in violations for node in item["nodes"]]
    return found


def told(item: dict, node: dict) -> str:
    return f"{item['id']}: {node['html'][:120]} {node.get('failureSummary', '')[-180:]}"
