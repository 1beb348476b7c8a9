"""A start that does not fit, or whose replies take minutes, is asked about first; everything else starts at once."""

import html

import pytest

from jobs.models import Operation
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
    assert "GPU 0: the model needs about 35.3 GiB and 1.8 GiB can be used now." in page
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
