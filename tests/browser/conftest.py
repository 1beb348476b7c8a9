"""A real Chromium before a real web process. Skipped with its reason where there is none; in CI that is a failure."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.bench import services
from tests.browser.site import PASSWORD
from tests.pages import broker
from tests.waiting import until_no

ROOT = Path(__file__).resolve().parents[2]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PEOPLE = ("owner", "viewer")


def _chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    reason = "no Chromium is installed (Debian, Ubuntu: apt install chromium)"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass(frozen=True)
class Site:
    """The address of a running master, and a way to let something happen on it from another process."""

    url: str
    environment: dict[str, str]

    def happen(self, verb: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "tests.browser.site", "do", verb], env=self.environment, cwd=ROOT, check=True
        )


@contextlib.contextmanager
def _site(folder: Path, kind: str) -> Iterator[Site]:
    with broker.running() as broker_url:
        port = services.free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MIRBAD_")}
        environment = kept | {
            "MIRBAD_DATA": str(folder),
            "MIRBAD_SECRET_KEY": "a secret of the browser tests, sealed with nothing real",
            "MIRBAD_REDIS_URL": broker_url,
            "MIRBAD_PORT": str(port),
            "DATABASE_URL": "",
        }
        (folder / "static").mkdir()
        with (folder / "web.log").open("w") as log:
            command = [sys.executable, "-m", "tests.browser.site", "serve", str(port), kind]
            process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
        try:
            _await(f"http://127.0.0.1:{port}/healthz", process, folder / "web.log")
            yield Site(f"http://127.0.0.1:{port}", environment)
        finally:
            process.terminate()
            process.wait(20)


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            pytest.fail(f"the web process ended: {log.read_text()[-3000:]}")
        urllib.request.urlopen(url, timeout=1)
        return True

    until_no((urllib.error.URLError, OSError), answers, every=0.1)


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Iterator[Site]:
    _chromium()
    with _site(tmp_path_factory.mktemp("site"), "fleet") as running:
        yield running


@pytest.fixture(scope="session")
def empty_site(tmp_path_factory) -> Iterator[Site]:
    _chromium()
    with _site(tmp_path_factory.mktemp("empty"), "empty") as running:
        yield running


@pytest.fixture(scope="session")
def fenced_site(tmp_path_factory) -> Iterator[Site]:
    _chromium()
    with _site(tmp_path_factory.mktemp("fenced"), "fenced") as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=_chromium(), args=FLAGS)
        yield running
        running.close()


@dataclass
class Watch:
    """Faults of pages: script errors, messages in the console, requests to other hosts."""

    host: str
    wrong: list[str] = field(default_factory=list)

    def over(self, context: BrowserContext) -> None:
        context.on("console", lambda message: self._said(message.type, message.text))
        context.on("weberror", lambda error: self.wrong.append(f"error: {error.error}"))
        context.on("request", lambda request: self._asked(request.url))

    def _said(self, kind: str, text: str) -> None:
        # A refusal has a status of 4xx or 503 by contract, and Chromium logs each as an error. htmx logs a request that
        # a newer one replaces.
        if kind == "error" and not re.search(
            r"the server responded with a status of (4\d\d|503)|htmx:error: signal is aborted", text
        ):
            self.wrong.append(f"console: {text}")

    def _asked(self, url: str) -> None:
        if not url.startswith((self.host, "data:", "blob:")):
            self.wrong.append(f"asked another host: {url}")


def signed_in(context: BrowserContext, url: str, name: str = "owner") -> None:
    page = context.new_page()
    page.goto(f"{url}/login")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{url}/")
    page.close()


@pytest.fixture(scope="session")
def sessions(site, browser) -> dict[str, dict]:
    """The cookies of each person, so that each test need not log in again."""
    states = {}
    for name in PEOPLE:
        context = browser.new_context()
        signed_in(context, site.url, name)
        states[name] = context.storage_state()
        context.close()
    return states


@pytest.fixture
def open_page(site, browser, sessions):
    """A function: a page of a signed-in person; afterwards nothing wrong may have happened in it."""
    contexts: list[tuple[BrowserContext, Watch]] = []

    def make(path: str = "/", *, person: str = "owner", width: int = 1440, scheme: str = "light", **options) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900 if width > 600 else 844},
            color_scheme=scheme,
            storage_state=sessions[person],
            **options,
        )
        watch = Watch(site.url)
        watch.over(context)
        contexts.append((context, watch))
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.goto(site.url + path)
        return page

    yield make
    wrong = []
    for context, watch in contexts:
        context.close()
        wrong += watch.wrong
    assert wrong == []
