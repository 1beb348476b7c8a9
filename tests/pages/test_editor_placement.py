"""The editor's placement: states and words of nodes, cards that go together, what is refused with its code."""

import html
import re

import pytest

from models_app.models import ModelDefinition, Placement
from nodes.models import Node
from tests.pages import octo, seed
from tests.pages.markup import compact

pytestmark = [pytest.mark.app, pytest.mark.django_db]
HX = {"HX-Request": "true"}
FORM = {
    "id": "another", "runtime": "vllm", "delivery": "container", "node": "octo", "folder": "qwen3-14b",
    "start_timeout_seconds": "1800", "first_byte_timeout_seconds": "300", "idle_timeout_seconds": "300",
    "wait_when_starting_seconds": "0",
}  # fmt: skip


@pytest.fixture
def fleet(db):
    octo.fleet()


def asked(operator, **change) -> str:
    answer = operator.client.post("/models/-/fit", FORM | change, headers=HX)
    assert answer.status_code == 200
    return html.unescape(compact(answer.content))


def card(index: int) -> str:
    return seed.gpu_uuid("octo", index)


def gpu_box(page: str, index: int) -> str:
    return re.search(rf'<input type="checkbox" name="gpu_uuids" value="{card(index)}"[^>]*>', page).group(0)


def test_each_node_says_its_state_and_whether_the_model_fits(fleet, operator):
    page = asked(operator)
    options = dict(re.findall(r'<option value="([^"]+)"[^>]*>([^<]+)</option>', page))
    assert options["octo"] == "Octo · fits"
    assert options["atlas"] == "Atlas · does not fit now"
    assert options["borealis"] == "Borealis · offline"
    assert options["cirrus"] == "Cirrus · draining"
    assert options["local"] == "local · cannot run this engine"
    assert '<option value="cirrus" disabled>' in page


def test_cards_of_another_kind_than_the_ticked_one_cannot_be_ticked(fleet, operator):
    page = asked(operator, gpu_uuids=[card(4)])
    assert "checked" in gpu_box(page, 4)
    assert "disabled" not in gpu_box(page, 5)
    assert "disabled" in gpu_box(page, 6)
    assert ">Fits<" in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)


def test_a_card_without_room_is_refused_with_its_numbers(fleet, operator):
    page = asked(operator, gpu_uuids=[card(0)])
    assert "GPU 0: needs 36.5 GiB, 1.8 GiB free." in page
    assert "The engine would take 90% of it, 43.2 GiB." in page
    assert "You can save this. Starting it asks for confirmation." in page


def test_every_input_of_the_estimate_is_shown_with_where_it_was_read(fleet, operator):
    page = asked(operator, gpu_uuids=[card(4)], context_length="8192")
    for name, value, source in (
        ("KV heads", "8", "config.json: num_key_value_heads"),
        ("Context", "8192 tokens", "the model's settings"),
        ("Share of each GPU that vLLM takes", "90%", "vLLM's default"),
        ("Types of the weights", "BF16 28.0 GiB", "headers of the safetensors files"),
    ):
        row = re.search(rf">{re.escape(name)}</td><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)</td>", page)
        assert row is not None, name
        assert row.groups() == (value, source)


def test_an_empty_image_says_which_one_runs_on_the_chosen_node(fleet, operator):
    assert "Default: the image of octo (vllm/vllm-openai)." in asked(operator)
    Node.objects.filter(pk="octo").update(default_image="", default_image_digest="")
    assert "octo has no default image for vllm; enter one." in asked(operator)
    assert "image_missing" in asked(operator)


def test_without_weights_it_says_what_is_missing_and_asks_nobody(fleet, operator, monkeypatch):
    monkeypatch.setattr("nodes.link.client.call", lambda *_, **__: pytest.fail("a node was asked"))
    page = asked(operator, folder="")
    assert "vllm needs weights. Choose weights to see where this fits." in page


def test_the_best_place_is_put_into_the_form_and_nothing_is_saved(fleet, operator):
    page = asked(operator, node="local", choose="1")
    assert "Chosen: octo, GPU 4: fits on GPU 4, has the weights" in page
    assert "checked" in gpu_box(page, 4)
    assert '<option value="octo" selected>' in page
    assert not ModelDefinition.objects.filter(pk="another").exists()


def test_without_any_place_every_node_says_why_not(fleet, operator):
    page = asked(operator, choose="1", context_length="40960", gpu_budget_gib="300")
    assert "No node can run this model now." in page
    for node_id, code in (
        ("octo", "memory_short"), ("atlas", "memory_short"), ("borealis", "node_offline"),
        ("cirrus", "node_draining"), ("local", "runtime_unavailable"),
    ):  # fmt: skip
        assert re.search(rf">{node_id}</span>: [^<]+<span class=\"code mono\">{code}<", page), node_id


def test_what_breaks_rules_is_refused_with_every_code_and_kept_in_the_form(fleet, operator):
    change = {"gpu_uuids": [card(5), card(6), "GPU-of-nobody"]}
    answer = operator.client.post("/models/-/new", FORM | change, headers=HX)
    page = html.unescape(answer.content.decode())
    assert "gpu_unknown" in page
    change = {"gpu_uuids": [card(5), card(6)]}
    page = compact(operator.client.post("/models/-/new", FORM | change, headers=HX).content)
    assert "gpu_capacity_mismatch" in page
    assert "checked" in gpu_box(page, 5)
    page = operator.client.post("/models/-/new", FORM | {"node": "cirrus"}, headers=HX).content.decode()
    assert "node_draining" in page
    assert not ModelDefinition.objects.filter(pk="another").exists()


def test_a_model_that_does_not_fit_may_be_saved(fleet, operator):
    answer = operator.client.post("/models/-/new", FORM | {"gpu_uuids": [card(0)]}, headers=HX)
    assert answer["HX-Redirect"] == "/models/another"
    assert Placement.objects.get(model_id="another").gpu_uuids == [card(0)]


def test_where_it_stands_the_node_is_fixed_and_a_card_that_is_gone_is_named(fleet, operator):
    page = html.unescape(operator.client.get("/models/qwen3-14b/edit").content.decode())
    assert '<select id="id_node"' not in page
    assert "GPU — · no longer on octo" in page
    assert "/models/qwen3-14b/move" in page
    answer = asked(operator, editing="qwen3-14b", gpu_uuids=["GPU-00000000-9999"])
    assert "GPU — · no longer on octo" in answer
    assert "gpu_unknown" in answer


def test_with_one_member_the_node_is_shown_and_not_chosen(fleet, operator):
    Node.objects.exclude(pk="octo").delete()
    page = operator.client.get("/models/-/new").content.decode()
    assert '<select id="id_node"' not in page
    assert 'name="node" value="octo"' in page


def test_a_viewer_asks_for_no_fit(fleet, viewer):
    assert viewer.client.post("/models/-/fit", FORM, headers=HX).status_code == 403


def test_statements_do_not_grow_with_the_fleet(fleet, operator, django_assert_max_num_queries):
    asked(operator, gpu_uuids=[card(4)])
    for number in range(12):
        seed.node(f"more-{number}", "", gpus=2)
    asked(operator, gpu_uuids=[card(4)])
    with django_assert_max_num_queries(30):
        asked(operator, gpu_uuids=[card(4)])


VISION = ("gemma-Q4_K_M.gguf", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "mmproj-F16.gguf")


def test_models_and_projectors_of_a_folder_are_chosen_apart_and_the_choice_is_kept(fleet, operator):
    node = Node.objects.get(pk="octo")
    files = [{"path": name, "sizeBytes": 1} for name in VISION]
    node.capabilities = node.capabilities | {"folders": [{"name": "gemma", "files": files}]}
    node.save(update_fields=["capabilities"])

    def choices(page: str, name: str) -> list[str]:
        select = re.search(rf'<select id="id_{name}".*?</select>', page, flags=re.DOTALL).group(0)
        return re.findall(r'<option value="([^"]*)"', select)

    page = operator.client.get("/models/-/node-fields?node=octo&folder=gemma").content.decode()
    assert choices(page, "file") == ["", "gemma-Q4_K_M.gguf", "big-00001-of-00002.gguf"]
    assert choices(page, "projector") == ["", "none", "mmproj-F16.gguf"]
    form = FORM | {
        "runtime": "llama.cpp", "delivery": "process", "folder": "gemma", "file": VISION[0],
        "projector": "mmproj-F16.gguf", "gpu_uuids": [card(4)], "args": "--parallel\n2", "context_length": "4096",
    }  # fmt: skip
    answer = operator.client.post("/models/-/new", form, headers=HX)
    assert answer.status_code == 204, re.findall(r"class=.error[^<]*<[^<]*", answer.content.decode())
    source = ModelDefinition.objects.get(pk="another").sources.get()
    assert (source.file, source.projector) == (VISION[0], "mmproj-F16.gguf")
    page = operator.client.get("/models/another/edit").content.decode()
    assert '<option value="mmproj-F16.gguf" selected>' in page
    assert "4096 tokens each, 2 requests at a time" in operator.client.get("/models/another").content.decode()
    node.capabilities = node.capabilities | {"folders": []}
    node.save(update_fields=["capabilities"])
    page = operator.client.get("/models/another/edit").content.decode()
    assert f'name="file" value="{VISION[0]}"' in page
    assert 'name="projector" value="mmproj-F16.gguf"' in page
    for name, value, words in (("file", VISION[2], "choose the first part"), ("file", VISION[3], "is a projector")):
        assert words in html.unescape(
            operator.client.post("/models/another/edit", form | {name: value}).content.decode()
        )
