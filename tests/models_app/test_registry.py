"""Definitions are written whole, guarded, and audited in the same transaction."""

import pytest
from django.db import transaction

from audit.models import AuditLine
from mirbad.kernel.errors import InvalidRequest, MirbadError, NotFound
from models_app import holds, registry, routing
from models_app.errors import (
    ModelBusy,
    ModelPlaced,
    NameTaken,
    PlacementChanged,
    PlacementInvalid,
    PlacementRequired,
    UseMove,
    UseUnplace,
)
from models_app.models import ModelDefinition, Placement
from models_app.placement import gpu_conditions
from models_app.registry.specs import unseal_env
from nodes.models import Node, NodeCondition
from tests.models_app.things import PERSON, capabilities, definition, gpu, model_data, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]

WEIGHTS = {"runtime": "vllm", "delivery": "container", "sources": [{"folder": "org/tiny"}]}


def lines(action: str) -> list[AuditLine]:
    return list(AuditLine.objects.filter(action=action))


def test_a_model_is_created_with_its_sources_and_an_audit_line() -> None:
    registry.create(model_data(**WEIGHTS, displayName="Tiny", tags=["small"]), PERSON)
    model = definition()
    assert (model.name, model.names, model.tags) == ("Tiny", ("tiny",), ["small"])
    assert [source.folder for source in model.sources.all()] == ["org/tiny"]
    (line,) = lines("model.create")
    assert (line.actor, line.model_id_text, line.result) == (PERSON.name, "tiny", "succeeded")


def test_the_only_fleet_member_takes_a_model_that_names_no_node() -> None:
    node("pc-1")
    node("pc-2", lifecycle="pending")
    registry.create(model_data(), PERSON)
    placement = Placement.objects.get(model_id="tiny")
    assert (placement.node_id_text, placement.desired, placement.observed) == ("pc-1", "stopped", "stopped")


def test_without_a_node_a_model_stands_nowhere() -> None:
    registry.create(model_data(), PERSON)
    assert not Placement.objects.exists()


def test_with_two_fleet_members_a_node_must_be_named() -> None:
    node("pc-1")
    node("pc-2")
    with pytest.raises(PlacementRequired):
        registry.create(model_data(), PERSON)
    assert not ModelDefinition.objects.exists()
    registry.create(model_data(placement={"nodeId": "pc-2"}), PERSON)
    assert Placement.objects.get().node_id_text == "pc-2"


def test_a_refused_placement_leaves_no_model_behind() -> None:
    node("pc-1", gpu("GPU-a"))
    with pytest.raises(PlacementInvalid) as caught:
        registry.create(model_data(**WEIGHTS, placement={"nodeId": "pc-1"}), PERSON)
    assert [problem["code"] for problem in caught.value.problems] == ["gpus_required"]
    assert not ModelDefinition.objects.exists()


@pytest.mark.parametrize(
    ("model_id", "names"), [("tiny", []), ("other", ["tiny"]), ("other", ["org/tiny"]), ("org-tiny", ["x", "org/tiny"])]
)
def test_an_id_or_served_name_belongs_to_one_model(model_id, names) -> None:
    registry.create(model_data("tiny", servedNames=["tiny", "org/tiny"]), PERSON)
    with pytest.raises(NameTaken) as caught:
        registry.create(model_data(model_id, servedNames=names), PERSON)
    assert caught.value.http_status == 409
    assert ModelDefinition.objects.count() == 1


def test_an_id_is_free_as_a_served_name_when_its_model_serves_under_others() -> None:
    registry.create(model_data("tiny", servedNames=["big"]), PERSON)
    registry.create(model_data("other", servedNames=["tiny"]), PERSON)
    assert ModelDefinition.objects.count() == 2


def test_a_refusal_is_an_audit_line() -> None:
    registry.create(model_data(), PERSON)
    with pytest.raises(NameTaken):
        registry.create(model_data(), PERSON)
    refused = lines("model.create")[0]
    assert (refused.result, refused.error_code, refused.model_id_text) == ("refused", "name_taken", "tiny")


def test_saving_replaces_every_field() -> None:
    registry.create(model_data(args=["--never-ready"], env={"SIM_A": "1"}, tags=["x"]), PERSON)
    registry.update("tiny", model_data(contextLength=2048), PERSON)
    model = definition()
    assert (model.args, model.env, model.tags, model.context_length) == ([], {}, [], 2048)
    assert len(lines("model.update")) == 1


def test_an_id_never_changes() -> None:
    registry.create(model_data(), PERSON)
    with pytest.raises(InvalidRequest) as caught:
        registry.update("tiny", model_data("other"), PERSON)
    assert caught.value.problems[0]["code"] == "id_fixed"


def test_saving_what_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound):
        registry.update("tiny", model_data(), PERSON)
    with pytest.raises(NotFound):
        registry.delete("tiny", PERSON)


def test_secret_values_are_sealed_and_kept_by_null() -> None:
    registry.create(model_data(secretEnv={"HF_TOKEN": "hf_canary12345", "SIM_B": "b"}), PERSON)
    model = definition()
    assert model.secret_env_names == ["HF_TOKEN", "SIM_B"]
    assert b"canary" not in bytes(model.secret_env_sealed)
    sealed = bytes(model.secret_env_sealed)
    registry.update("tiny", model_data(secretEnv={"HF_TOKEN": None, "SIM_B": None}), PERSON)
    assert bytes(definition().secret_env_sealed) == sealed, "what did not change is not sealed anew"
    registry.update("tiny", model_data(secretEnv={"HF_TOKEN": None}), PERSON)
    assert unseal_env(definition()) == {"HF_TOKEN": "hf_canary12345"}
    registry.update("tiny", model_data(), PERSON)
    assert (definition().secret_env_sealed, definition().secret_env_names) == (None, [])


def test_a_secret_that_is_to_be_kept_must_be_there() -> None:
    with pytest.raises(InvalidRequest) as caught:
        registry.create(model_data(secretEnv={"HF_TOKEN": None}), PERSON)
    assert caught.value.problems[0]["code"] == "secret_missing"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"placement": {"nodeId": "pc-2"}}, UseMove),
        ({"placement": None}, UseUnplace),
        ({"placement": {"nodeId": "pc-1", "gpuUuids": ["GPU-b"]}, "placementGeneration": 7}, PlacementChanged),
        ({"placement": {"nodeId": "pc-1", "gpuUuids": ["GPU-x"]}}, PlacementInvalid),
    ],
)
def test_an_edit_does_not_move_a_model(change, error) -> None:
    node("pc-1", gpu("GPU-a"), gpu("GPU-b"))
    node("pc-2")
    placed(placement={"nodeId": "pc-1", "gpuUuids": ["GPU-a"]})
    with pytest.raises(error):
        registry.update("tiny", model_data(args=["--never-ready"], **change), PERSON)
    assert definition().args == [], "nothing of a refused edit is kept"


def test_an_edit_may_choose_other_gpus_of_the_node() -> None:
    node("pc-1", gpu("GPU-a"), gpu("GPU-b"))
    placed(placement={"nodeId": "pc-1", "gpuUuids": ["GPU-a"]})
    Node.objects.update(draining=True)
    change = {"placement": {"nodeId": "pc-1", "gpuUuids": ["GPU-b"]}, "placementGeneration": 1}
    registry.update("tiny", model_data(**change), PERSON)
    placement = Placement.objects.get()
    assert (placement.gpu_uuids, placement.generation) == (["GPU-b"], 2)
    with pytest.raises(PlacementChanged):
        registry.update("tiny", model_data(**change), PERSON)


def test_an_edit_that_does_not_speak_of_the_placement_leaves_it_alone() -> None:
    node("pc-1")
    placement = placed()
    registry.update("tiny", model_data(args=["--never-ready"]), PERSON)
    placement.refresh_from_db()
    assert (placement.generation, definition().args) == (1, ["--never-ready"])


def test_a_held_model_takes_settings_but_no_other_gpus() -> None:
    node("pc-1", gpu("GPU-a"), gpu("GPU-b"))
    placed(placement={"nodeId": "pc-1", "gpuUuids": ["GPU-a"]})
    holds.take("tiny", "job", "job-1", "a benchmark on node pc-1")
    registry.update("tiny", model_data(tags=["x"], placement={"nodeId": "pc-1", "gpuUuids": ["GPU-a"]}), PERSON)
    with pytest.raises(ModelBusy) as caught:
        registry.update("tiny", model_data(placement={"nodeId": "pc-1", "gpuUuids": ["GPU-b"]}), PERSON)
    assert "a benchmark on node pc-1 holds it" in caught.value.detail
    with pytest.raises(ModelBusy):
        registry.delete("tiny", PERSON)


@pytest.mark.parametrize(
    ("desired", "observed", "lifecycle", "allowed"),
    [
        ("stopped", "stopped", "approved", True),
        ("stopped", "failed", "approved", True),
        ("running", "ready", "approved", False),
        ("running", "stopped", "approved", False),
        ("stopped", "stopping", "approved", False),
        ("stopped", "unknown", "approved", False),
        ("stopped", "unknown", "revoked", True),
    ],
)
def test_only_a_model_that_surely_runs_nowhere_is_deleted(desired, observed, lifecycle, allowed) -> None:
    node("pc-1")
    placed()
    Placement.objects.update(desired=desired, observed=observed)
    Node.objects.update(lifecycle=lifecycle)
    if allowed:
        registry.delete("tiny", PERSON)
        assert not ModelDefinition.objects.exists()
        assert lines("model.delete")[0].result == "succeeded"
    else:
        with pytest.raises(ModelPlaced):
            registry.delete("tiny", PERSON)
        assert ModelDefinition.objects.exists()


def test_every_write_bumps_the_routing_version() -> None:
    seen = [routing.version()]
    registry.create(model_data(), PERSON)
    seen.append(routing.version())
    registry.update("tiny", model_data(servedNames=["x"]), PERSON)
    seen.append(routing.version())
    registry.delete("tiny", PERSON)
    seen.append(routing.version())
    assert seen == sorted(set(seen))


def test_what_is_refused_bumps_nothing() -> None:
    registry.create(model_data(), PERSON)
    before = routing.version()
    with pytest.raises(MirbadError), transaction.atomic():
        registry.create(model_data(), PERSON)
    assert routing.version() == before


def test_a_placed_gpu_that_left_is_a_reason_of_its_node_until_it_is_chosen_again() -> None:
    node("pc-1", gpu("GPU-a"), gpu("GPU-b"))
    placed(placement={"nodeId": "pc-1", "gpuUuids": ["GPU-a"]})
    assert not gpu_conditions.refresh("pc-1")
    Node.objects.update(capabilities=capabilities(gpu("GPU-b")).to_wire())
    assert gpu_conditions.refresh("pc-1")
    condition = NodeCondition.objects.get()
    assert (condition.code, condition.subject) == ("placed_gpu_missing", "tiny")
    assert "GPU-a" in condition.detail
    assert not gpu_conditions.refresh("pc-1")
    registry.update("tiny", model_data(placement={"nodeId": "pc-1", "gpuUuids": ["GPU-b"]}), PERSON)
    assert not NodeCondition.objects.exists()


def test_a_deleted_model_is_no_reason_any_more() -> None:
    node("pc-1", gpu("GPU-a"))
    placed(placement={"nodeId": "pc-1", "gpuUuids": ["GPU-a"]})
    Node.objects.update(capabilities=capabilities(gpu("GPU-b")).to_wire())
    gpu_conditions.refresh("pc-1")
    registry.delete("tiny", PERSON)
    assert not NodeCondition.objects.exists()
