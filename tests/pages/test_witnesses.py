"""The nodes as witnesses of the audit log on pages and on ``/api``, and the decision of an owner."""

import json

import pytest
from django.urls import reverse

from audit.models import AuditLine
from tests.pages import seed, trouble

pytestmark = [pytest.mark.app, pytest.mark.django_db]

HTMX = {"HX-Request": "true"}
GOOD = {"reason": "restored", "confirm": "this audit log counts"}


@pytest.fixture
def master():
    return trouble.signed_log()


@pytest.fixture
def conflict(master):
    trouble.conflict(master)


def fragment(person):
    return person.client.get(reverse("nodes:witnesses"), headers=HTMX).content.decode()


def test_the_audit_page_shows_what_each_node_holds(owner, operator, viewer, stranger, anybody, conflict):
    assert reverse("nodes:witnesses") in viewer.client.get(reverse("audit:list")).content.decode()
    shown = fragment(viewer)
    assert shown.count("agrees") == 1
    assert "refuses this log" in shown
    assert "refused a log" in shown
    assert "by ada (owner)" in shown
    assert f"in place of 9 lines, root {'ab' * 32}" in shown
    assert "disk &lt;b&gt;failed" in shown
    assert "Accept this log…" not in shown
    assert "Accept this log…" not in fragment(operator)
    assert "Accept this log…" in fragment(owner)
    assert viewer.client.get(reverse("nodes:witnesses")).status_code == 302
    assert stranger.client.get(reverse("nodes:witnesses"), headers=HTMX).status_code == 403


def test_without_a_conflict_nothing_is_offered(owner, master):
    assert "No node has witnessed the log yet" in fragment(owner)
    trouble.witness("atlas", master)
    assert "Accept this log…" not in fragment(owner)
    assert owner.client.post(reverse("nodes:witnesses-accept"), GOOD, headers=HTMX).status_code == 409


def test_an_owner_decides_on_the_page(owner, operator, viewer, conflict):
    url = reverse("nodes:witnesses-accept")
    page = owner.client.get(url).content.decode()
    assert "<html" in page
    assert "Borea" in page
    assert "Ceres" in page
    assert "Atlas" not in page.partition("<form")[2]
    for person in (operator, viewer):
        assert person.client.get(url).status_code == 403
        assert person.client.post(url, GOOD).status_code == 403
    for wrong, status in (({"confirm": "yes"}, 409), ({"reason": " "}, 400)):
        assert owner.client.post(url, {**GOOD, **wrong}, headers=HTMX).status_code == status
    answer = owner.client.post(url, GOOD, headers=HTMX)
    assert (answer.status_code, answer["HX-Redirect"]) == (204, reverse("audit:list"))
    lines = AuditLine.objects.filter(action="audit.accept-log", result="accepted").order_by("id")
    assert [(line.node_id_text, line.target, line.person) for line in lines] == [
        ("borea", f"9 lines, root {'ab' * 32}", "owner"), ("ceres", f"9 lines, root {'ab' * 32}", "owner"),
    ]  # fmt: skip


def test_an_owner_decides_on_the_api(owner, operator, viewer, stranger, anybody, with_token, conflict):
    def post(client, **changes):
        body = json.dumps({**GOOD, **changes})
        return client.post("/api/audit/witnesses/accept", body, content_type="application/json")

    found = viewer.client.get("/api/audit/witnesses").json()["items"]
    assert [(one["nodeId"], one["agrees"], one["held"]["size"], len(one["breaks"])) for one in found] == [
        ("atlas", True, 3, 1), ("borea", False, 9, 0), ("ceres", True, 3, 0),
    ]  # fmt: skip
    assert stranger.client.get("/api/audit/witnesses").status_code == 403
    for person in (operator, viewer, stranger):
        assert post(person.client).status_code == 403
    assert post(anybody).status_code == 401
    assert post(with_token("operator")).status_code == 403
    for wrong, status in (
        ({"nodeIds": ["atlas"]}, 409), ({"nodeIds": "x"}, 400), ({"reason": ""}, 400), ({"x": 1}, 400),
    ):  # fmt: skip
        assert post(owner.client, **wrong).status_code == status, wrong
    assert post(owner.client, nodeIds=["ceres"]).json() == {"nodeIds": ["ceres"]}
    assert post(with_token("owner", owner.user)).json() == {"nodeIds": ["borea", "ceres"]}


def test_the_page_of_a_node_shows_what_it_holds(viewer, conflict):
    def facts(node_id):
        return viewer.client.get(reverse("nodes:detail", args=[node_id])).content.decode()

    assert "by ada (owner)" in facts("atlas")
    assert "9 lines from" in facts("borea")
    assert "Audit log refused" in facts("ceres")
    seed.node("fresh", "Fresh")
    assert "not yet" in facts("fresh")
