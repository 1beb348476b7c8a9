"""The plan of an import: what is created, changed, kept and left out, where it goes, and why."""

from datetime import timedelta

import pytest

from jobs.backup import sealed
from jobs.backup.importing import places
from jobs.backup.importing.choices import ImportOptions, TargetChoice
from jobs.backup.importing.plan import NodeMatch, PlannedAction
from mirbad.kernel import clock
from mirbad.kernel.errors import InvalidRequest
from mirbad.kernel.ids import new_uid
from models_app import holds, keys
from models_app.fit.verdict import Capacity
from models_app.models import ApiKey, ModelDefinition, Placement
from models_app.placement.feasible import NodeFacts
from models_app.placement.fleet import FleetCard, Machine
from nodes.models import Gpu, Node
from tests.jobs.backup.fleet import fill
from tests.jobs.backup.importing.fleets import (
    RTX,
    backed_up,
    forget_all,
    forget_models,
    machine,
    plan,
    planned,
)
from tests.models_app.things import GIB, PERSON, capabilities, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)


def card(uuid, memory=24 * GIB, name="RTX 4090", problem=""):
    return FleetCard(Capacity(label=uuid, uuid=uuid), name, memory, problem=problem)


def cards_of(*cards, count):
    facts = NodeFacts("pc-1", "approved", False, None)
    found = places.equal_cards(Machine(facts, Capacity(label="Host memory"), cards), count)
    return [one.uuid for one in found]


def test_equal_cards_are_the_largest_and_of_the_lowest_indices():
    small = [card(f"s{n}", 16 * GIB, "small") for n in range(4)]
    large = [card(f"l{n}", 80 * GIB, "large") for n in range(2)]
    assert cards_of(*small, *large, count=1) == ["l0"]
    assert cards_of(*small, *large, count=2) == ["l0", "l1"]
    assert cards_of(*small, *large, count=3) == ["s0", "s1", "s2"]
    assert cards_of(*small, *large, count=5) == []
    assert cards_of(card("a", name="other"), card("b"), card("c"), count=2) == ["b", "c"]
    assert cards_of(card("b", name="x"), card("a", name="y"), count=1) == ["b"]


def test_a_card_with_a_problem_or_of_unknown_memory_is_equal_to_none():
    assert cards_of(card("a", problem="lost"), card("b"), card("c"), count=2) == ["b", "c"]
    assert cards_of(card("a", problem="lost"), card("b"), count=2) == []
    assert cards_of(card("a", None), card("b", None), count=2) == []
    assert cards_of(card("a", None), card("b", None), count=1) == ["a"]
    assert cards_of(count=1) == []


def test_all_is_kept_on_the_master_that_the_backup_is_of(tmp_path):
    fill()
    read = backed_up(tmp_path)
    found = plan(read)
    assert {model.action for model in found.models} == {PlannedAction.KEPT}
    assert [(key.action, key.reason) for key in found.keys] == [("kept", "It has the same secret here.")]
    assert [(node.id, node.match, node.settings) for node in found.nodes] == [("pc-1", NodeMatch.SAME, ())]
    assert not any(model.places or model.start for model in found.models)


def test_a_model_that_is_gone_returns_to_its_machine_and_its_cards(tmp_path):
    machine("pc-1", RTX | {"uuid": "GPU-0"}, RTX | {"uuid": "GPU-1"})
    placed("one", "pc-1", placement={"nodeId": "pc-1", "gpuUuids": ["GPU-1"]})
    Placement.objects.update(desired="running", start_seconds=12.5)
    read, uid = backed_up(tmp_path), Node.objects.get().uid
    forget_all()
    machine("renamed", RTX | {"uuid": "GPU-0"}, RTX | {"uuid": "GPU-1"}, uid=uid)
    one = planned(read, "one")
    assert (one.action, one.start, one.needs_target, one.notes) == (PlannedAction.CREATED, True, False, ())
    assert [(p.node_id, p.gpu_uuids, p.start_seconds) for p in one.places] == [("renamed", ("GPU-1",), 12.5)]
    without = planned(read, "one", options=ImportOptions(start_models=False, start_times=False))
    assert (without.start, without.places[0].start_seconds) == (False, None)


def test_cards_that_are_gone_are_replaced_by_equal_ones_or_the_model_is_unplaced(tmp_path):
    machine("pc-1", RTX | {"uuid": "GPU-0"}, RTX | {"uuid": "GPU-1"})
    placed("one", "pc-1", placement={"nodeId": "pc-1", "gpuUuids": ["GPU-0", "GPU-1"]})
    read, uid = backed_up(tmp_path), Node.objects.get().uid
    forget_all()
    machine("pc-1", RTX | {"uuid": "GPU-8"}, RTX | {"uuid": "GPU-9"}, uid=uid)
    one = planned(read, "one")
    assert one.places[0].gpu_uuids == ("GPU-8", "GPU-9")
    assert one.notes == (
        "It gets GPU 0, GPU 1 of node pc-1, 24 GiB each. Change the GPUs in the editor if you want others.",
    )
    forget_all()
    machine("pc-1", RTX | {"uuid": "GPU-8"}, uid=uid)
    one = planned(read, "one")
    assert (one.action, one.places, one.start) == (PlannedAction.CREATED, (), False)
    assert one.notes == ("It is restored unplaced: Node 'pc-1' does not have 2 equal GPUs without a problem.",)


@pytest.fixture
def elsewhere(tmp_path):
    """A backup of two models of pc-1 on a master that knows another pc-1, a node with cards, and a unified one."""
    machine("pc-1", RTX | {"uuid": "GPU-0"})
    node("old", address="192.0.2.3")
    placed("one", "pc-1", placement={"nodeId": "pc-1", "gpuUuids": ["GPU-0"]})
    placed("two", "old")
    Placement.objects.update(desired="running", start_seconds=3.0)
    read = backed_up(tmp_path)
    forget_all()
    machine("pc-1", RTX | {"uuid": "GPU-5"})
    machine("big", RTX | {"uuid": "GPU-6"}, {"uuid": "GPU-7", "name": "H100", "memory": 80 * GIB})
    node("spark", address="192.0.2.4")
    return read


def test_a_node_of_the_same_name_alone_needs_a_target(elsewhere):
    found = plan(elsewhere)
    assert {one.id: (one.match, one.models, one.unresolved) for one in found.nodes} == {
        "old": (NodeMatch.NONE, 1, 1),
        "pc-1": (NodeMatch.NAME_ONLY, 1, 1),
    }
    assert [one.id for one in found.unresolved] == ["one", "two"]
    assert not found.available.node_settings
    assert not any(one.start for one in found.models)


def test_targets_are_of_a_model_before_those_of_its_node(elsewhere):
    targets = (TargetChoice(backup_node_id="pc-1", node_id="big"), TargetChoice(backup_node_id="old", unplaced=True))
    found = {one.id: one for one in plan(elsewhere, *targets).models}
    assert [(p.node_id, p.gpu_uuids, p.start_seconds) for p in found["one"].places] == [("big", ("GPU-7",), None)]
    assert found["one"].start
    assert (found["two"].places, found["two"].notes) == ((), ("It is restored unplaced, as chosen.",))
    mine = TargetChoice(model_id="one", node_id="spark")
    assert [(p.node_id, p.gpu_uuids) for p in planned(elsewhere, "one", mine, *targets).places] == [("spark", ())]
    gpus = TargetChoice(model_id="one", node_id="big", gpu_uuids=("GPU-6",))
    assert planned(elsewhere, "one", gpus, *targets).places[0].gpu_uuids == ("GPU-6",)
    # A model of a unified machine gets at least one card of a discrete one.
    assert planned(elsewhere, "two", TargetChoice(model_id="two", node_id="big")).places[0].gpu_uuids == ("GPU-7",)


def test_the_others_can_be_left_unplaced_at_once(elsewhere):
    found = plan(elsewhere, TargetChoice(model_id="one", node_id="big"), others_unplaced=True)
    assert [(one.id, bool(one.places), one.needs_target) for one in found.models] == [
        ("one", True, False),
        ("two", False, False),
    ]
    assert found.models[1].notes == ("It stays unplaced.",)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (TargetChoice(node_id="big"), "target_invalid"),
        (TargetChoice(model_id="one", backup_node_id="old", node_id="big"), "target_invalid"),
        (TargetChoice(model_id="one"), "target_invalid"),
        (TargetChoice(model_id="one", node_id="big", unplaced=True), "target_invalid"),
        (TargetChoice(backup_node_id="old", node_id="big", gpu_uuids=("GPU-6",)), "target_invalid"),
        (TargetChoice(model_id="nobody", node_id="big"), "model_unknown"),
        (TargetChoice(backup_node_id="nowhere", node_id="big"), "node_unknown"),
        (TargetChoice(model_id="one", node_id="nowhere"), "node_unknown"),
        (TargetChoice(model_id="one", node_id="big", gpu_uuids=("GPU-5",)), "placement_invalid"),
        (TargetChoice(model_id="one", node_id="big", gpu_uuids=("GPU-6", "GPU-7")), "placement_invalid"),
    ],
)
def test_a_choice_that_names_what_is_not_there_is_refused(elsewhere, target, code):
    with pytest.raises(InvalidRequest) as refusal:
        plan(elsewhere, target)
    assert [(problem["code"], problem["field"]) for problem in refusal.value.problems] == [(code, "targets.0")]


def test_two_targets_of_one_model_are_refused(elsewhere):
    with pytest.raises(InvalidRequest, match="one has two targets"):
        plan(elsewhere, TargetChoice(model_id="one", node_id="big"), TargetChoice(model_id="one", unplaced=True))


def test_a_node_that_takes_no_models_leaves_them_unplaced(elsewhere):
    Node.objects.filter(pk="big").update(draining=True)
    found = planned(elsewhere, "one", TargetChoice(model_id="one", node_id="big"))
    assert found.places == ()
    assert found.notes[0].startswith("It is restored unplaced: Node 'big' is draining")


def test_weights_without_a_repository_are_named(tmp_path):
    node("old", address="192.0.2.3")
    placed("one", "old", sources=[{"folder": "mine", "file": "x.gguf"}])
    read = backed_up(tmp_path)
    assert planned(read, "one").action == PlannedAction.KEPT
    forget_all()
    node("new", address="192.0.2.4")
    found = planned(read, "one", TargetChoice(model_id="one", node_id="new"))
    assert found.notes == ("Its weights have no repository: copy the folder mine to new.",)


def test_a_changed_definition_is_changed_back_and_stays_where_it_is(tmp_path):
    fill()
    read = backed_up(tmp_path)
    ModelDefinition.objects.filter(pk="m1").update(tags=["other"], display_name="Mine")
    found = planned(read, "m1")
    assert (found.action, found.changes, found.places) == (PlannedAction.CHANGED, ("display_name", "tags"), ())
    assert found.placed_on == ("pc-1",)
    before = plan(read).digest
    assert plan(read).digest == before
    # The names of what differs are the same, and yet another edit would be overwritten.
    ModelDefinition.objects.filter(pk="m1").update(tags=["newer"])
    assert plan(read).digest != before


@pytest.mark.parametrize("unplaced", [True, False])
def test_a_model_that_is_placed_here_is_not_moved_by_an_import(tmp_path, unplaced):
    fill()
    node("pc-2", address="192.0.2.4")
    read = backed_up(tmp_path)
    target = TargetChoice(model_id="m1", unplaced=True) if unplaced else TargetChoice(model_id="m1", node_id="pc-2")
    with pytest.raises(InvalidRequest, match="unplace it on its page" if unplaced else "move it on its page"):
        plan(read, target)
    assert planned(read, "m1", TargetChoice(model_id="m1", node_id="pc-1")).action == PlannedAction.KEPT


def test_a_model_that_was_unplaced_here_is_placed_again(tmp_path):
    fill()
    read = backed_up(tmp_path)
    Placement.objects.filter(model_id="m1").delete()
    found = planned(read, "m1")
    assert (found.action, found.changes) == (PlannedAction.CHANGED, ("placement",))
    assert [place.node_id for place in found.places] == ["pc-1"]
    assert planned(read, "m1", TargetChoice(model_id="m1", unplaced=True)).action == PlannedAction.KEPT


def test_what_cannot_be_imported_is_left_out_and_says_why(tmp_path):
    fill(models=4)
    ModelDefinition.objects.filter(pk="m2").update(served_names=["gpt"])
    ModelDefinition.objects.filter(pk="m3").update(env={"LD_PRELOAD": "/tmp/x.so"})
    read = backed_up(tmp_path)
    holds.take("m0", "move", "move-op-1", "a move to node pc-2")
    Placement.objects.exclude(model_id="m0").delete()
    ModelDefinition.objects.exclude(pk="m0").delete()
    placed("taken", "pc-1", servedNames=["gpt"])
    found = {one.id: one for one in plan(read).models}
    assert {one.id: one.action.value for one in found.values()} == {
        "m0": "left-out", "m1": "created", "m2": "left-out", "m3": "left-out",
    }  # fmt: skip
    assert found["m0"].reason.startswith("It is busy here: a move to node pc-2 holds it.")
    assert found["m2"].reason.startswith("The name 'gpt' belongs to model 'taken' here.")
    assert found["m3"].reason.startswith("Its definition is not allowed here: ")
    assert "LD_PRELOAD" in found["m3"].reason


def test_secrets_come_with_the_passphrase_alone(tmp_path):
    fill()
    with_them = backed_up(tmp_path)
    Placement.objects.filter(model_id="m1").update(desired="running")
    without = backed_up(tmp_path, None)
    forget_models()
    found = planned(with_them, "m0")
    assert (found.start, found.missing_secrets, found.notes) == (True, (), ())
    found = planned(without, "m0")
    assert (found.start, found.missing_secrets) == (False, ("HF_TOKEN",))
    assert found.notes[0].startswith("Enter the values of HF_TOKEN again")
    assert plan(without).notes[0].startswith("This backup was made without secrets")
    assert plan(without).keys == ()


def test_a_secret_that_differs_is_a_change_and_is_never_in_the_plan(tmp_path):
    fill()
    read, bare = backed_up(tmp_path), backed_up(tmp_path, None)
    ModelDefinition.objects.filter(pk="m1").update(secret_env_sealed=None)
    found = planned(read, "m1")
    assert (found.action, found.changes) == (PlannedAction.CHANGED, ("secret variables",))
    assert planned(bare, "m1").action == PlannedAction.KEPT
    assert "canary" not in repr(plan(read))
    assert "canary" not in repr(read)


def test_keys_are_known_by_their_secret_and_none_that_was_taken_away_returns(tmp_path):
    for name in ("same", "revoked here", "rotated here", "gone", "twin", "expired"):
        keys.create(name, actor=PERSON)
    revoked, _ = keys.create("revoked before", actor=PERSON)
    keys.revoke(revoked.pk, PERSON)
    ApiKey.objects.filter(name="expired").update(expires_at=clock.now() - timedelta(days=1))
    fill(models=0)
    ApiKey.objects.filter(name="tools").delete()
    read = backed_up(tmp_path)
    keys.revoke(ApiKey.objects.get(name="revoked here").pk, PERSON)
    keys.rotate(ApiKey.objects.get(name="rotated here").pk, PERSON)
    ApiKey.objects.filter(name__in=("gone", "twin", "expired", "revoked before")).delete()
    keys.create("twin", actor=PERSON)
    found = plan(read)
    assert {read.keys[one.number].name: (one.action.value, one.name) for one in found.keys} == {
        "same": ("kept", "same"),
        "revoked here": ("kept", "revoked here"),
        "rotated here": ("kept", "rotated here"),
        "gone": ("created", "gone"),
        "twin": ("created", "twin (imported)"),
        "expired": ("left-out", "expired"),
        "revoked before": ("left-out", "revoked before"),
    }
    reasons = {read.keys[one.number].name: one.reason for one in found.keys}
    assert reasons["revoked here"] == "It is revoked here and stays so."
    assert reasons["rotated here"] == "It has a newer secret here; that one stays valid."
    assert found.notes == ("API keys with a name that is taken here get another one: twin (imported).",)


def test_settings_are_those_of_the_same_machine_and_never_trust(tmp_path):
    fill()
    read = backed_up(tmp_path)
    Node.objects.filter(pk="pc-1").update(
        labels={}, memory_reserve_bytes=None, address="192.0.2.99", lifecycle="pending", draining=True
    )
    Gpu.objects.filter(uuid="GPU-0").update(reserve_bytes=None)
    found = plan(read).nodes[0]
    assert [(one.name, one.gpu_uuid, one.before, one.after) for one in found.settings] == [
        ("labels", "", {}, {"room": "attic"}),
        ("memory_reserve_bytes", "", None, GIB),
        ("reserve_bytes", "GPU-0", None, GIB),
    ]
    assert plan(read, options=ImportOptions(node_settings=False)).nodes[0].settings == ()
    Node.objects.filter(pk="pc-1").update(uid=new_uid())
    assert plan(read).nodes[0].settings == ()


def test_replicas_return_to_their_machines_and_two_never_to_one_node(tmp_path):
    node("a", address="192.0.2.3")
    node("b", address="192.0.2.4")
    placed("one", "a")
    Placement.objects.create(model_id="one", node_id_text="b", desired="stopped", observed="stopped")
    Placement.objects.create(model_id="one", node_id_text="moving", desired="stopped", observed="stopped", routed=False)
    read = backed_up(tmp_path)
    forget_models()
    assert sorted(place.node_id for place in planned(read, "one").places) == ["a", "b"]
    assert len({place.replica for place in planned(read, "one").places}) == 2
    both = TargetChoice(backup_node_id="a", node_id="b")
    found = planned(read, "one", both)
    assert [place.node_id for place in found.places] == ["b"]
    assert found.notes == ("A second replica on node b is left out.",)
    found = planned(read, "one", TargetChoice(model_id="one", node_id="a"))
    assert [place.node_id for place in found.places] == ["a"]
    assert found.notes == ("Its 2 placements become one, as chosen.",)
    Node.objects.filter(pk="b").delete()
    found = planned(read, "one")
    assert ([place.node_id for place in found.places], found.needs_target) == (["a"], False)
    assert found.notes == ("A replica whose node is not here is left out.",)


def test_shards_return_together_or_not_at_all(tmp_path):
    replica = new_uid()
    for node_id in ("a", "b"):
        caps = capabilities(fabrics=(), features=("launch.env", "replicas.shards"))
        node(node_id, caps=caps, address=f"192.0.2.{ord(node_id)}")
    placed("one", "a")
    Placement.objects.update(replica=replica, shards=2)
    Placement.objects.create(
        model_id="one", node_id_text="b", replica=replica, shard=1, shards=2, desired="stopped", observed="stopped"
    )
    read = backed_up(tmp_path)
    forget_models()
    found = planned(read, "one")
    assert found.places == ()
    assert "has no usable fabric" in found.notes[0]
    fabric = {"name": "ib0", "adapters": ["mlx5_0"]}
    for row in Node.objects.all():
        row.capabilities = {**row.capabilities, "fabrics": [fabric]}
        row.capabilities_seq = 2
        row.save()
    found = planned(read, "one")
    assert [(place.node_id, place.shard, place.shards) for place in found.places] == [("a", 0, 2), ("b", 1, 2)]
    assert len({place.replica for place in found.places}) == 1


def test_start_times_that_are_missing_are_filled_and_measured_ones_stay(tmp_path):
    fill()
    Placement.objects.update(start_seconds=12.5)
    read = backed_up(tmp_path)
    Placement.objects.filter(model_id="m1").update(start_seconds=None)
    Placement.objects.filter(model_id="m2").update(start_seconds=99.0)
    found = {one.id: (one.changes, [seconds for _, seconds in one.start_seconds]) for one in plan(read).models}
    assert found == {"m0": ((), []), "m1": (("start time",), [12.5]), "m2": ((), [])}


def test_the_queries_of_a_preview_do_not_grow(tmp_path, django_assert_max_num_queries):
    fill(models=40)
    read = backed_up(tmp_path)
    forget_models()
    with django_assert_max_num_queries(14):
        plan(read)
