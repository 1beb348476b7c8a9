"""Chromium on a page of another origin: ``python -m tests.figures.real_clients.browser CHROMIUM PAGE URL KEY …``.

It prints one JSON line: "ok" or the failure, by case.
"""

import json
import sys

from playwright.sync_api import sync_playwright

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def main(chromium: str, page: str, *arguments: str) -> dict[str, str]:
    """Return the outcome of every case."""
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=_FLAGS)
        tab = browser.new_page()
        tab.set_default_timeout(600_000)
        tab.goto(page)
        found: dict[str, str] = tab.evaluate("(arguments) => run(...arguments)", list(arguments))
        browser.close()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
