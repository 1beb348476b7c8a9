"""A node whose models disk is not there: starts and downloads are refused with the code, and go on once it is back."""

import pytest

from agent.wire.capability import Feature
from agent.wire.errors import AgentCode
from jobs.kinds.launch import NAME
from jobs.loops.resume import resume_once
from jobs.models import Operation
from jobs.requests import downloads, model_runs
from models_app.artifacts.download_request import DownloadRequest
from models_app.models import Placement
from models_app.placement import candidates
from nodes import queries
from nodes.errors import ModelsRootChanged
from nodes.models import Node
from tests.models_app.things import PERSON, capabilities, model_data, node, placed
from tests.standins.memory import refusal

pytestmark = [pytest.mark.app, pytest.mark.django_db]

WHY = "The models root /srv/models is gone. Mount it."
WARNING = {"code": "models_root_changed", "detail": WHY}


@pytest.fixture(autouse=True)
def _machine() -> None:
    caps = capabilities(features=(Feature.LAUNCH_ENV, Feature.DOWNLOADS))
    node("pc-1", caps=caps, boot_id="boot-1")


def disk(*, there: bool) -> None:
    Node.objects.update(warnings=[] if there else [{"code": "other", "detail": "x"}, WARNING])


def the(model_id: str = "big") -> Placement:
    return Placement.objects.get(model_id=model_id)


def weights(model_id: str = "big") -> Placement:
    return placed(model_id, runtime="llama.cpp", sources=[{"folder": "m", "file": "a.gguf"}])


def test_a_person_is_refused_with_code_and_sentence_and_an_engine_without_weights_starts(agent) -> None:
    weights()
    placed("tiny")
    disk(there=False)
    with pytest.raises(ModelsRootChanged, match="Mount it") as refused:
        model_runs.start("big", PERSON)
    assert (refused.value.code, refused.value.http_status) == ("models_root_changed", 409)
    with pytest.raises(ModelsRootChanged):
        model_runs.restart("big", PERSON)
    with pytest.raises(ModelsRootChanged):
        downloads.request("pc-1", DownloadRequest("acme/tiny"), None, PERSON)
    assert not Operation.objects.exists()
    assert model_runs.start("tiny", PERSON).kind == NAME
    disk(there=True)
    assert model_runs.start("big", PERSON).kind == NAME


def test_a_simulated_engine_whose_weights_are_downloaded_waits_too(agent) -> None:
    source = {"kind": "huggingface", "folder": "acme--tiny", "repository": "acme/tiny"}
    placed("tiny", sources=[source])
    disk(there=False)
    with pytest.raises(ModelsRootChanged):
        model_runs.start("tiny", PERSON)


def test_the_node_is_degraded_with_the_code(agent) -> None:
    disk(there=False)
    shown = queries.shown_state(queries.get("pc-1"), ())
    assert (shown.name, shown.reason_codes) == ("Degraded", ("other", "models_root_changed"))


def test_a_start_that_the_node_refuses_waits_for_the_disk_and_follows_it(agent, finish) -> None:
    weights()
    operation = model_runs.start("big", PERSON)
    agent.refusals = [refusal(AgentCode.MODELS_ROOT_CHANGED, WHY)]
    ended = finish(operation.pk)
    assert (ended.outcome, ended.error["code"]) == ("failed", "models_root_changed")
    assert "Mount it" in ended.error["detail"]
    assert "starts once the disk is there" in ended.error["detail"]
    assert the().desired == "running"
    disk(there=False)
    assert resume_once() == 0, "it waits"
    disk(there=True)
    assert resume_once() == 1
    assert finish(Operation.objects.order_by("-id")[0].pk).outcome == "succeeded"
    assert the().observed == "ready"


def test_the_planner_names_the_disk_against_its_node(agent) -> None:
    caps = capabilities(warnings=(WHY,), warning_codes=("models_root_changed",))
    Node.objects.update(capabilities=caps.to_wire())
    wanted = model_data("new", runtime="llama.cpp", sources=[{"folder": "m", "file": "a.gguf"}])
    assert {one.node_id: one.code for one in candidates.rank(wanted).rejections} == {"pc-1": "models_root_changed"}
    others = candidates.rank(model_data("other")).rejections
    assert "models_root_changed" not in {one.code for one in others}, "it needs no weights"
