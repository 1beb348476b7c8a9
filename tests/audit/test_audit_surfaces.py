"""The signed head and the people on the audit page and on ``/api``."""

import pytest
from django.urls import reverse

from audit import checkpoints, log, seal
from audit.models import AuditLine, Checkpoint
from mirbad.kernel import actor
from tests.audit.attacks import verifier

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture
def head():
    for number in range(5):
        log.record("job", actor.admin("s", "ada", "owner", "192.0.2.7"), detail=f"line {number}")
    while seal._extend():
        pass
    return checkpoints.sign_once()


def test_the_head_is_exported_for_the_script(viewer, head):
    answer = viewer.client.get("/api/audit/checkpoint")
    assert answer["Content-Disposition"] == 'attachment; filename="checkpoint.json"'
    assert (answer.json()["head"], answer.json()["witnesses"]) == (head.head, {})
    assert verifier.check_head(answer.json(), head.head["key"], []) == 0
    Checkpoint.objects.all().delete()
    assert viewer.client.get("/api/audit/checkpoint").status_code == 404


@pytest.mark.parametrize(("query", "status"), [("seq=6", 404), ("seq=0", 400), ("seq=x", 400), ("", 400)])
def test_only_lines_under_a_head_are_proved(viewer, head, query, status):
    for seq in range(1, 6):
        answer = viewer.client.get(f"/api/audit/proof?seq={seq}")
        assert verifier.verify_line(answer.json()).startswith(f"Line {seq} is under the head of 5 lines")
    assert viewer.client.get(f"/api/audit/proof?{query}").status_code == status


def test_heads_are_for_people_with_a_role(stranger, anybody, head):
    for path in ("/api/audit/checkpoint", "/api/audit/proof?seq=1"):
        assert stranger.client.get(path).status_code == 403
        assert anybody.get(path).status_code == 401


def test_the_page_shows_the_head_its_witnesses_and_the_people(viewer, head):
    url = reverse("audit:list")
    page = viewer.client.get(url).content.decode()
    assert head.head["root"] in page
    assert head.head["key"] in page
    assert "no node yet" in page
    assert "ada" in page
    assert "owner from 192.0.2.7" in page
    Checkpoint.objects.update(witnesses={"pc-2": {}, "pc-1": {}})
    assert "pc-1, pc-2" in viewer.client.get(url).content.decode()
    Checkpoint.objects.all().delete()
    assert "Signed head" not in viewer.client.get(url).content.decode()


def test_a_line_names_who_asked(owner, viewer, anybody, with_token, head):
    anybody.post(reverse("login"), {"username": owner.user.username, "password": "wrong"})
    said = AuditLine.objects.order_by("-id").first()
    assert (said.action, said.person, said.role) == ("login", "", "")
    refused = with_token("operator").post("/api/fencing/takeover", "{}", content_type="application/json")
    assert refused.status_code == 403
    said = AuditLine.objects.filter(action="fencing.takeover").order_by("-id").first()
    assert (said.actor, said.role, said.address) == ("api:127.0.0.1", "operator", "127.0.0.1")
    assert said.person == "operator of the tests"
    owner.client.post("/api/fencing/takeover", '{"confirm": "no"}', content_type="application/json")
    said = AuditLine.objects.filter(action="fencing.takeover").order_by("-id").first()
    assert (said.person, said.role, said.address) == (owner.user.username, "owner", "127.0.0.1")
    item = viewer.client.get("/api/audit?max=1").json()["items"][0]
    assert (item["person"], item["role"], item["address"]) == (owner.user.username, "owner", "127.0.0.1")
