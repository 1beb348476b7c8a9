"""The pages of moves: what the buttons do, what is refused where the person acted, who may."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import Operation
from models_app.models import ModelDefinition, Placement
from nodes.models import Node
from tests.pages import moving, seed
from tests.pages.markup import compact

pytestmark = [pytest.mark.app, pytest.mark.django_db]

HTMX = {"HX-Request": "true"}


@pytest.fixture
def placement() -> Placement:
    seed.node("atlas", "Atlas", gpus=2)
    seed.node("local", "", is_bootstrap=True)
    return moving.movable("tiny", "atlas", "Tiny")


def test_a_move_is_begun_and_its_page_follows_it(owner, placement):
    form = compact(owner.client.get("/models/tiny/move").content)
    assert 'value="local" required checked' in form
    begun = owner.client.post("/models/tiny/move", {"node": "local", "mode": "auto"}, headers=HTMX)
    assert (begun.status_code, begun["HX-Redirect"]) == (204, "/models/tiny/move")
    operation = Operation.objects.get()
    assert (operation.kind, operation.node_id_text, operation.input["mode"]) == ("move", "local", "handover")
    page = owner.client.get("/models/tiny/move").content.decode()
    assert "Cancel move" in page
    assert "Move to node local requested." in page
    assert "atlas" in page
    model = owner.client.get("/models/tiny").content.decode()
    assert "a move to node local" in model, "who holds it"
    assert owner.client.post("/models/tiny/move/cancel", headers=HTMX).status_code == 204
    operation.refresh_from_db()
    assert operation.cancel_requested_at is not None


def test_the_log_of_the_engine_that_comes_up_is_read_from_the_target(owner, placement):
    operation = moving.move(placement, "local", mode="handover", stage="starting-target")
    page = owner.client.get("/models/tiny/move").content.decode()
    assert 'hx-get="/models/tiny/log?node=local"' in page
    Operation.objects.filter(pk=operation.pk).update(stage="draining-source")
    assert "log?node=" not in owner.client.get("/models/tiny/move/-/state").content.decode()


def test_gpus_of_the_chosen_node_alone_are_sent_on(owner, placement):
    Placement.objects.update(node_id_text="local")
    uuid = seed.gpu_uuid("atlas", 1)
    sent = {"node": "atlas", "gpus-atlas": uuid, "gpus-other": "GPU-x", "mode": "stop-first", "token": " "}
    assert owner.client.post("/models/tiny/move", sent, headers=HTMX).status_code == 204
    operation = Operation.objects.get()
    assert (operation.input["gpuUuids"], operation.input["mode"]) == ([uuid], "stop-first")


def test_a_card_without_an_index_is_named_by_its_uuid(owner, placement):
    node = Node.objects.get(pk="local")
    cards = [{"uuid": "GPU-11112222-aaaa-bbbb-cccc-1234567890ab", "memoryBytes": 24 * 2**30}]
    Node.objects.filter(pk="local").update(capabilities=node.capabilities | {"gpus": cards})
    form = owner.client.get("/models/tiny/move").content.decode()
    assert "GPU 567890ab · name not reported · 24 GiB" in form
    assert "None" not in form


def test_a_node_that_cannot_be_chosen_says_why(owner, placement):
    Node.objects.filter(pk="local").update(draining=True)
    form = compact(owner.client.get("/models/tiny/move").content)
    assert 'value="local" required disabled' in form
    assert "Node &#x27;local&#x27; is draining: undrain it, or choose another node." in form
    refused = owner.client.post("/models/tiny/move", {"node": "local"}, headers=HTMX)
    assert refused.status_code == 409
    assert "node_draining" in refused.content.decode()
    assert not Operation.objects.exists()


def test_a_model_of_a_folder_is_told_that_it_cannot_move(owner, placement):
    ModelDefinition.objects.get().sources.update(kind="folder")
    assert "are in a folder of its node" in owner.client.get("/models/tiny/move").content.decode()


def test_a_source_that_is_away_is_given_up_by_its_id(owner, placement):
    Node.objects.filter(pk="atlas").update(reachability="offline")
    moving.move(placement, "local", mode="stop-first", stage="stopping-source", progress={"text": "x", "paused": True})
    page = owner.client.get("/models/tiny/move").content.decode()
    assert "Force-commit to local" in page
    assert "the old engine may still be running there" in page
    wrong = owner.client.post("/models/tiny/move/force-commit", {"confirm": "local"}, headers=HTMX)
    assert (wrong.status_code, "confirmation_required" in wrong.content.decode()) == (409, True)
    assert owner.client.post("/models/tiny/move/force-commit", {"confirm": "atlas"}, headers=HTMX).status_code == 204
    assert Operation.objects.get().state == {"forced": True}


def test_an_unplace_of_what_runs_wants_its_id(owner, placement):
    page = owner.client.get("/models/tiny/unplace").content.decode()
    assert "cannot start or serve until it is moved to a node again" in page
    assert "stays on the node" in page
    refused = owner.client.post("/models/tiny/unplace", {"confirm": "other"}, headers=HTMX)
    assert (refused.status_code, "confirmation_required" in refused.content.decode()) == (409, True)
    assert not Operation.objects.exists()
    done = owner.client.post("/models/tiny/unplace", {"confirm": "tiny"}, headers=HTMX)
    assert (done.status_code, done["HX-Redirect"]) == (204, "/models/tiny")
    assert Operation.objects.get().kind == "unplace"


def test_who_may_only_look_moves_nothing(viewer, placement):
    for path in ("move", "unplace"):
        assert viewer.client.get(f"/models/tiny/{path}").status_code == 403
    for path in ("move", "move/cancel", "move/force-commit", "unplace", "start-anyway"):
        assert viewer.client.post(f"/models/tiny/{path}", headers=HTMX).status_code == 403
    assert "Move to another node" not in viewer.client.get("/models/tiny").content.decode()
    moving.move(placement, "local", mode="handover", stage="downloading")
    assert "Cancel move" not in viewer.client.get("/models/tiny/move/-/state").content.decode()
    assert not Operation.objects.exclude(kind="move").exists()


def test_the_form_costs_the_same_for_many_nodes_as_for_few(owner, placement):
    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert owner.client.get("/models/tiny/move").status_code == 200
        return len(queries)

    few = cost()
    for number in range(6):
        seed.node(f"pc-{number}", "", gpus=1)
    assert cost() == few
