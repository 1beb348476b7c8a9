"""A start that does not fit, or whose replies take minutes, is asked about first; everything else starts at once."""

import html
import json

import pytest

from audit.models import AuditLine
from jobs.loops import resume
from jobs.models import Operation
from jobs.requests import recovery
from models_app.models import ModelDefinition, Placement
from nodes.models import Node
from tests.pages import octo, seed

pytestmark = [pytest.mark.app, pytest.mark.django_db]
HX = {"HX-Request": "true"}


@pytest.fixture
def fleet(db, identity):
    octo.fleet()


@pytest.fixture
def identity(db):
    from nodes.pki import authority

    return authority.ensure()


def placed_on(*cards: int) -> None:
    Placement.objects.filter(model_id="qwen3-14b").update(
        gpu_uuids=[seed.gpu_uuid("octo", card) for card in cards], observed="stopped"
    )


def started() -> dict | None:
    operation = Operation.objects.filter(model_id_text="qwen3-14b", kind="launch").first()
    return None if operation is None else operation.input


def test_what_fits_starts_at_once(fleet, operator):
    placed_on(4)
    answer = operator.client.post("/models/qwen3-14b/start", headers=HX)
    assert answer.status_code == 204, answer.content.decode()
    assert "HX-Redirect" not in answer
    assert started()["force"] is False


def test_what_does_not_fit_leads_to_the_question_with_its_numbers_and_starts_nothing(fleet, operator):
    placed_on(0)
    answer = operator.client.post("/models/qwen3-14b/start", headers=HX)
    assert answer["HX-Redirect"] == "/models/qwen3-14b/start/ask"
    assert started() is None
    page = html.unescape(operator.client.get("/models/qwen3-14b/start/ask").content.decode())
    assert "GPU 0: needs 35.3 GiB, 1.8 GiB free." in page
    assert "Start anyway" in page
    assert 'name="force" value="on"' in page
    answer = operator.client.post("/models/qwen3-14b/start", {"asked": "on", "force": "on", "go": "on"}, headers=HX)
    assert answer["HX-Redirect"] == "/models/qwen3-14b"
    assert started()["force"] is True


def test_a_slow_processor_is_asked_about_and_memory_is_checked_all_the_same(fleet, operator):
    host = {"memoryTotalBytes": 64 * octo.GIB, "memoryAvailableBytes": 60 * octo.GIB}
    Node.objects.filter(pk="octo").update(host=host | {"memoryBandwidthBytesPerSecond": 20 * 10**9})
    ModelDefinition.objects.filter(pk="qwen3-14b").update(runtime="llama.cpp", delivery="process")
    placed_on()
    answer = operator.client.post("/models/qwen3-14b/start", headers=HX)
    assert answer["HX-Redirect"] == "/models/qwen3-14b/start/ask"
    page = html.unescape(operator.client.get("/models/qwen3-14b/start/ask").content.decode())
    assert "a reply of 400 takes about 15 minutes." in page
    assert 'name="force"' not in page
    operator.client.post("/models/qwen3-14b/start", {"asked": "on", "go": "on"}, headers=HX)
    assert started()["force"] is False


def test_what_is_not_known_asks_nothing(fleet, operator):
    from models_app.models import KnownShape

    KnownShape.objects.all().delete()
    placed_on(0)
    Node.objects.filter(pk="octo").update(reachability="offline", status_at=None)
    answer = operator.client.post("/models/qwen3-14b/start", headers=HX)
    assert answer.status_code == 503, "the start itself says why"


def test_the_question_is_no_page_of_a_model_that_is_not_there(fleet, operator):
    assert operator.client.get("/models/nobody/start/ask").status_code == 404
    assert operator.client.post("/models/nobody/start", headers=HX).status_code == 404


def sent(person, path: str, body: dict | None = None):
    answer = person.client.post(f"/api/models/{path}", json.dumps(body or {}), content_type="application/json")
    return answer.status_code, answer.json()


def replica_of(model_id: str) -> str:
    return str(Placement.objects.get(model_id=model_id).replica)


@pytest.mark.parametrize("path", ["qwen3-14b/start", "qwen3-14b/restart", "replica/start", "replica/restart"])
def test_a_program_is_asked_as_a_person_is_with_the_figures_of_each_card(fleet, operator, path) -> None:
    placed_on(0, 4)
    path = path.replace("replica", f"qwen3-14b/replicas/{replica_of('qwen3-14b')}")
    for body in ({}, {"confirm": False}, {"force": False}):
        status, refusal = sent(operator, path, body)
        assert (status, refusal["code"]) == (409, "confirmation_required")
    assert started() is None
    assert 'send "confirm": true' in refusal["detail"]
    assert {problem["code"] for problem in refusal["problems"]} == {"memory_short"}
    (fit,) = refusal["fits"]
    first, second, host = fit["lines"]
    assert (fit["nodeId"], first["name"], first["gpuUuid"]) == ("octo", "GPU 0", seed.gpu_uuid("octo", 0))
    assert (first["state"], second["state"], host["state"]) == ("does_not_fit", "fits", "fits")
    assert first["missingBytes"] == first["neededBytes"] - first["usableBytes"] > 0
    assert (second["missingBytes"], host["gpuUuid"]) == (0, None)
    assert AuditLine.objects.filter(error_code="confirmation_required", model_id_text="qwen3-14b").count() == 3
    status, _ = sent(operator, path, {"confirm": True})
    assert status == 202
    assert started()["force"] is True, "confirmed: the node's check lets it pass"


def test_what_fits_needs_no_confirmation_and_a_confirmation_skips_no_check(fleet, operator) -> None:
    placed_on(4)
    assert sent(operator, "qwen3-14b/start", {"confirm": True})[0] == 202
    assert started()["force"] is False


def test_force_alone_asks_nothing(fleet, operator) -> None:
    placed_on(0)
    assert sent(operator, "qwen3-14b/start", {"force": True})[0] == 202
    assert started()["force"] is True


def test_a_slow_processor_is_asked_about_on_the_api_and_memory_is_checked_all_the_same(fleet, operator) -> None:
    host = {"memoryTotalBytes": 64 * octo.GIB, "memoryAvailableBytes": 60 * octo.GIB}
    Node.objects.filter(pk="octo").update(host=host | {"memoryBandwidthBytesPerSecond": 20 * 10**9})
    ModelDefinition.objects.filter(pk="qwen3-14b").update(runtime="llama.cpp", delivery="process")
    placed_on()
    status, refusal = sent(operator, "qwen3-14b/start")
    assert (status, [problem["code"] for problem in refusal["problems"]]) == (409, ["slow_on_cpu"])
    assert refusal["fits"][0]["cpuTokensPerSecond"] < 1
    assert sent(operator, "qwen3-14b/start", {"confirm": True})[0] == 202
    assert started()["force"] is False


@pytest.mark.parametrize("where", ["restart", "replica"])
def test_a_restart_and_a_replica_are_asked_about_on_pages_too(fleet, operator, where) -> None:
    placed_on(0)
    replica = replica_of("qwen3-14b")
    url, ask = {
        "restart": ("/models/qwen3-14b/restart", "/models/qwen3-14b/start/ask?verb=restart"),
        "replica": (
            f"/models/qwen3-14b/replicas/{replica}/start",
            f"/models/qwen3-14b/start/ask?replica={replica}",
        ),
    }[where]
    answer = operator.client.post(url, headers=HX)
    assert (answer["HX-Redirect"], started()) == (ask, None)
    page = html.unescape(operator.client.get(ask).content.decode())
    assert f'action="{url}"' in page
    assert ("Restart anyway" if where == "restart" else "Start anyway") in page
    assert "GPU 0" in page.split("<tbody>")[1].split("</tbody>")[0], "the table names the card"
    operator.client.post(url, {"asked": "on", "force": "on", "go": "on"}, headers=HX)
    assert started()["force"] is True
    assert operator.client.get("/models/qwen3-14b/start/ask?replica=x").status_code == 404


def test_what_a_person_confirmed_starts_again_by_itself_until_it_is_changed(fleet, operator) -> None:
    placed_on(0)
    sent(operator, "qwen3-14b/start", {"confirm": True})
    Operation.objects.all().delete()
    placement = Placement.objects.select_related("model").get(model_id="qwen3-14b")
    assert recovery.launch_again(placement, resume.AUTOSTART, "It ran before.").input["force"] is True
    Operation.objects.all().delete()
    ModelDefinition.objects.filter(pk="qwen3-14b").update(context_length=16384)
    assert recovery.launch_again(placement, resume.AUTOSTART, "It ran before.").input["force"] is False


def test_a_start_promises_its_memory_from_the_request_on(fleet, operator) -> None:
    placed_on(4)
    assert sent(operator, "qwen3-14b/start")[0] == 202
    promised = Placement.objects.get(model_id="qwen3-14b").promised
    assert set(promised) == {"", seed.gpu_uuid("octo", 4)}
    assert promised[seed.gpu_uuid("octo", 4)] > 28 * octo.GIB
