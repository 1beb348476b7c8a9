"""The settings tab of a node: reserves of its cards, default images, and the images that its Docker has."""

import pytest

from agent.wire.images import LocalImage
from jobs.models import Operation
from jobs.pages.contexts.images import images_of
from mirbad.kernel import clock
from models_app.artifacts.images import ImageInventory
from nodes.models import Gpu, Node
from nodes.pages.forms.settings import NodeSettingsForm
from tests.pages import seed

HX = {"HX-Request": "true"}
GIB = 1024**3
DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
APPROVED, DEFAULT = f"registry.local/vllm@{DIGEST}", f"registry.local/other@{OTHER}"

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture
def master(db):
    seed.fleet()


def data_of(form: NodeSettingsForm) -> dict[str, object]:
    return {name: value for name, value in form.initial.items() if value is not None}


def test_each_card_of_its_own_memory_has_a_reserve_and_only_a_changed_one_is_sent(master, operator):
    Gpu.objects.filter(node_id="atlas").delete()
    node = Node.objects.get(pk="atlas")
    for number in range(2):
        Gpu.objects.create(node=node, uuid=f"GPU-{number}", index=number, name="RTX", memory_bytes=24 * GIB)
    Gpu.objects.create(node=node, uuid="GPU-gone", index=2, memory_bytes=GIB, present=False)
    form = operator.client.get("/nodes/atlas/settings").context["form"]
    assert [gpu.uuid for gpu in form.gpus] == ["GPU-0", "GPU-1"]
    assert form.fields["memory_reserve_gib"].label == "Host RAM reserve, GiB"
    sent = data_of(form) | {"gpu_reserve_GPU-1": "1.5"}
    answer = operator.client.post("/nodes/atlas/save", sent, headers=HX)
    assert answer["HX-Redirect"] == "/nodes/atlas/settings"
    assert dict(node.gpus.values_list("uuid", "reserve_bytes")) == {
        "GPU-0": None, "GPU-1": int(1.5 * GIB), "GPU-gone": None,
    }  # fmt: skip
    form = operator.client.get("/nodes/atlas/settings").context["form"]
    operator.client.post("/nodes/atlas/save", data_of(form) | {"gpu_reserve_GPU-1": ""}, headers=HX)
    assert set(node.gpus.values_list("reserve_bytes", flat=True)) == {None}


def test_a_card_that_is_gone_keeps_its_field_as_long_as_something_is_left_alone_on_it(master):
    Gpu.objects.filter(node_id="atlas").update(present=False, shares_host_memory=False, reserve_bytes=GIB)
    form = NodeSettingsForm.of(Node.objects.get(pk="atlas"))
    assert form.gpus
    assert all("no longer reports" in form.fields[f"gpu_reserve_{gpu.uuid}"].help_text for gpu in form.gpus)


def test_cards_that_share_the_hosts_memory_have_no_reserve_of_their_own(master):
    Gpu.objects.filter(node_id="atlas").update(shares_host_memory=True)
    form = NodeSettingsForm.of(Node.objects.get(pk="atlas"))
    assert form.gpus == ()
    assert form.fields["memory_reserve_gib"].label == "Memory reserve, GiB"


def test_a_default_image_of_llama_cpp_is_saved(master, operator):
    form = operator.client.get("/nodes/atlas/settings").context["form"]
    operator.client.post("/nodes/atlas/save", data_of(form) | {"default_llama_image": "a/llama:1"}, headers=HX)
    assert Node.objects.get(pk="atlas").default_llama_image == "a/llama:1"


def shelf(**changes: object) -> ImageInventory:
    here = (LocalImage(references=(APPROVED,), size_bytes=3 * GIB),)
    values = {
        "node": Node.objects.get(pk="atlas"), "allow_tag_pulls": False, "approved": (APPROVED,),
        "defaults": (DEFAULT,), "here": here,
    }  # fmt: skip
    return ImageInventory(**values | changes)


def test_images_say_whether_they_are_there_and_whether_a_start_would_be_refused(master):
    default, approved = images_of(shelf()).rows
    assert (default.reference, default.tone, default.may_pull) == (DEFAULT, "bad", False)
    assert "Not approved on this node" in default.words
    assert (approved.tone, approved.may_pull, approved.words) == ("ok", False, "On the node, 3 GiB.")
    default, approved = images_of(shelf(approved=(APPROVED, DEFAULT))).rows
    assert (default.tone, default.may_pull) == ("idle", True)
    assert default.about == "for models without an image, approved"


def test_what_docker_does_not_tell_is_not_said_to_be_missing(master):
    (row,) = images_of(shelf(defaults=(), here=None, problem="Docker does not run.")).rows
    assert (row.tone, row.may_pull) == ("idle", False)
    assert "Unknown" in row.words


def test_a_pull_at_work_is_shown_with_its_bytes_and_not_offered_again(master):
    Operation.objects.create(
        kind="image-pull", concurrency_group="work", target_kind="image", target_id="x",
        node_id_text="atlas", actor="config",
        stage="pulling", next_run_at=clock.now(), input={"reference": DEFAULT},
        progress={"text": "Pulling image", "doneBytes": 4, "totalBytes": 10},
    )  # fmt: skip
    default, _ = images_of(shelf(approved=(APPROVED, DEFAULT))).rows
    assert (default.may_pull, default.pull.done_bytes, default.pull.total_bytes) == (False, 4, 10)


def test_images_of_a_node_that_is_away_are_not_read_and_the_page_says_so(master, viewer, operator):
    Node.objects.filter(pk="atlas").update(reachability="offline")
    text = viewer.client.get("/nodes/-/images/atlas", headers=HX).content.decode()
    assert "The images of the node cannot be read." in text
    assert viewer.client.get("/nodes/-/images/nobody", headers=HX).status_code == 404
    refused = operator.client.post("/nodes/-/images/atlas/pull", {"image": APPROVED}, headers=HX)
    assert (refused.status_code, b"node_offline" in refused.content) == (503, True)
    assert viewer.client.post("/nodes/-/images/atlas/pull", {"image": APPROVED}, headers=HX).status_code == 403
