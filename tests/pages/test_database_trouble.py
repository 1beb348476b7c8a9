"""Pages when the database cannot be used: they name the trouble, and do not call Mirbad broken."""

import pytest
from django.db import OperationalError

from mirbad.accounts import login

pytestmark = pytest.mark.app


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("database or disk is full", "The disk of the database is full"),
        ("could not extend file: No space left on device", "The disk of the database is full"),
        ("attempt to write a readonly database", "The database is read-only"),
        ("cannot execute UPDATE in a read-only transaction", "The database is read-only"),
        ("connection failed: secret-host refused", "The database is unreachable or busy"),
    ],
)
def test_the_page_says_what_is_the_matter_with_the_database(db, client, monkeypatch, trouble, words):
    def fail(*args, **kwargs):
        raise OperationalError(trouble)

    monkeypatch.setattr(login, "login_is_disabled", fail)
    client.raise_request_exception = False
    page = client.get("/login")
    assert page.status_code == 503
    assert words in page.content.decode()
    assert "secret-host" not in page.content.decode()
    answer = client.get("/login", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


def test_any_other_fault_keeps_its_page(db, client, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("something else")

    monkeypatch.setattr(login, "login_is_disabled", fail)
    client.raise_request_exception = False
    page = client.get("/login")
    assert page.status_code == 500
    assert "Internal error on the master" in page.content.decode()
