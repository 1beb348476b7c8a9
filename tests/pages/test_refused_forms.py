"""A form that is refused before any view: the page is headed by what is wrong with it."""

import re

import pytest

pytestmark = [pytest.mark.app, pytest.mark.django_db]

TOKEN = "a" * 32
URLENCODED = "application/x-www-form-urlencoded"
FIELD = b'--x\r\nContent-Disposition: form-data; name="csrfmiddlewaretoken"\r\n\r\n' + TOKEN.encode() + b"\r\n"
MANY = "&".join(f"f{number}=1" for number in range(1100)).encode()


def heading(answer):
    """The status and the heading of a page."""
    found = re.search(r"<h1>(.*?)</h1>", answer.content.decode(), re.DOTALL)
    assert found is not None, answer.content
    return answer.status_code, found[1].strip()


@pytest.fixture
def strict(anybody):
    """A client that sends its CSRF cookie, and is held to its token."""
    anybody.handler.enforce_csrf_checks = True
    anybody.cookies["csrftoken"] = TOKEN
    return anybody


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (URLENCODED, b"username=x", (403, "Form refused")),
        (URLENCODED, b"", (403, "Form refused")),
        (URLENCODED, b"%%%=&&&==", (403, "Form refused")),
        (URLENCODED, b"csrfmiddlewaretoken=" + b"b" * 32, (403, "Form refused")),
        ("text/plain", b"x", (403, "Form refused")),
        ("multipart/form-data", b"x", (400, "Bad request")),
        ("multipart/form-data; boundary=", b"x", (400, "Bad request")),
        ("multipart/form-data; boundary=\u00e9", b"x", (400, "Bad request")),
        ("multipart/form-data; boundary=x", b"nonsense", (403, "Form refused")),
        (URLENCODED, MANY, (400, "Bad request")),
        (URLENCODED, b"a=" + b"x" * 3_000_000, (413, "Payload too large")),
    ],
)
def test_the_heading_follows_the_status(strict, kind, body, expected):
    assert heading(strict.post("/login", body, content_type=kind)) == expected


def test_a_form_of_another_site_is_refused_as_such(strict):
    answer = strict.post("/login", {"csrfmiddlewaretoken": TOKEN}, headers={"Origin": "https://elsewhere.example"})
    assert heading(answer) == (403, "Form refused")
    assert "sent from another site" in answer.content.decode()


def test_a_role_that_lacks_a_permission_is_still_told_so(stranger):
    assert heading(stranger.client.get("/nodes")) == (403, "You don't have permission")


def test_programs_get_a_problem_document(strict):
    answer = strict.post("/login", {}, headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (403, "csrf_failed")
