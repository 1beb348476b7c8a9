"""Every address with an id in it, asked for something that is not there: never a fault, and nothing is changed."""

import re

import pytest

from audit.models import AuditLine
from tests.architecture.test_routes import all_routes

pytestmark = [pytest.mark.app, pytest.mark.django_db]

_STAND_INS = {"int": ("999", "99999999999999999999999"), "uuid": ("6f1c5f62-6f61-4d0e-9d3a-0d2f5e1d2c3b",)}


def addresses() -> list[str]:
    found = set()
    for route, _ in all_routes():
        plain = route.replace("^", "").replace("$", "")
        if "<" not in plain or "(?P" in plain or plain.startswith(("static/", "api/docs")):
            continue
        for at in range(2):

            def stand_in(match: re.Match[str], at: int = at) -> str:
                words = _STAND_INS.get(match[1].rpartition(":")[0], ("nobody",))
                return words[at % len(words)]

            found.add("/" + re.sub(r"<([^>]*)>", stand_in, plain))
    return sorted(found)


@pytest.mark.parametrize("address", addresses())
def test_what_is_not_there_is_no_fault(owner, address) -> None:
    before = AuditLine.objects.filter(result="succeeded").count()
    looked = owner.client.get(address)
    asked = owner.client.post(address, {"name": "x"}, headers={"HX-Request": "true"})
    assert max(looked.status_code, asked.status_code) < 500, (looked.status_code, asked.status_code)
    assert AuditLine.objects.filter(result="succeeded").count() == before
