"""A person at the pages of the recovery mode: logs in, uploads, confirms, as a browser sends it."""

import re
from html import unescape
from pathlib import Path
from typing import Self

import requests

from tests.e2e.fleet import Fleet

PASSPHRASE = "correct horse battery staple"
CONFIRMED = "the previous master is stopped"


class RecoveryBrowser:
    """A browser on one master; close it at the end."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.http = requests.Session()
        self.http.trust_env = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def get(self, path: str) -> requests.Response:
        """Open a page, where it leads to."""
        return self.http.get(self._fleet.url + path, headers={"Accept": "text/html"}, timeout=60)

    def send(self, path: str, values: dict[str, str], file: tuple[str, bytes] | None = None) -> requests.Response:
        """Send a form of the page that was opened last, with its token."""
        data = {**values, "csrfmiddlewaretoken": self.http.cookies["csrftoken"]}
        files = {"file": file} if file else None
        headers = {"Origin": self._fleet.url, "Accept": "text/html"}
        return self.http.post(self._fleet.url + path, data=data, files=files, headers=headers, timeout=120)

    def log_in(self, name: str = "admin", password: str | None = None) -> requests.Response:
        """Log in, as the admin with the password of this data folder unless told otherwise."""
        self.get("/login")
        word = password or (self._fleet.data / "secrets" / "admin-password").read_text().strip()
        return self.send("/login", {"username": name, "password": word})

    def upload(self, path: Path, passphrase: str = PASSPHRASE) -> requests.Response:
        """Upload a backup; the page with its preview, or with the refusal."""
        return self.send("/backup/recover/upload", {"passphrase": passphrase}, (path.name, path.read_bytes()))

    def install(self, preview: requests.Response) -> requests.Response:
        """Confirm the preview."""
        found = re.search(r'name="upload" value="([^"]+)"', preview.text)
        assert found, text_of(preview)
        return self.send("/backup/recover/install", {"upload": found[1], "stopped": "yes"})


def text_of(page: requests.Response) -> str:
    """Return the text of a page without its tags, in one line."""
    body = page.text.partition("<main")[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())
