"""A person's actions on models, keys and operations, and the text of each refusal."""

import re

import pytest

from audit.models import AuditLine
from jobs.models import Operation
from mirbad.kernel.errors import Unavailable
from mirbad.tasking import heartbeat
from models_app.models import ApiKey, ModelDefinition, Placement
from nodes.link import client
from nodes.models import Node
from tests.pages import seed
from tests.pages.markup import compact

pytestmark = pytest.mark.app
HX = {"HX-Request": "true"}

FORM = {
    "id": "small-talk",
    "runtime": "llama.cpp",
    "delivery": "process",
    "node": "local",
    "folder": "smollm2-135m",
    "start_timeout_seconds": "1800",
    "first_byte_timeout_seconds": "300",
    "idle_timeout_seconds": "300",
    "wait_when_starting_seconds": "0",
}


@pytest.fixture
def master(db):
    seed.fleet()


def test_a_model_is_defined_by_the_form(master, operator):
    form = FORM | {
        "args": "--threads\n4",
        "env": "TZ=Europe/Paris",
        "secret_env": "HF_TOKEN=hf_aSecretThatIsLong",
        "tags": "chat, small",
        "served_names": "small-talk\nchat/small",
        "gpu_budget_gib": "1.5",
        "auto_start": "on",
    }
    answer = operator.client.post("/models/-/new", form, headers=HX)
    assert answer["HX-Redirect"] == "/models/small-talk"
    model = ModelDefinition.objects.get(pk="small-talk")
    assert model.args == ["--threads", "4"]
    assert model.env == {"TZ": "Europe/Paris"}
    assert model.secret_env_names == ["HF_TOKEN"]
    assert model.tags == ["chat", "small"]
    assert model.served_names == ["small-talk", "chat/small"]
    assert model.gpu_memory_budget_bytes == int(1.5 * 1024**3)
    assert model.auto_start
    assert model.placements.get().node_id_text == "local"
    for page in ("/models/small-talk", "/models/small-talk/edit", "/audit", "/models"):
        assert "hf_aSecretThatIsLong" not in operator.client.get(page).content.decode()


def _node_choices(page: bytes) -> list[str]:
    found = re.search(r'<select id="id_node".*?</select>', compact(page))
    return re.findall(r">([^<>]+)</option>", found.group(0)) if found else []


def test_the_form_offers_no_node_only_where_a_model_may_be_without_one(operator):
    assert _node_choices(operator.client.get("/models/-/new").content) == ["No node yet"]
    seed.node("one", "one")
    page = operator.client.get("/models/-/new").content
    assert _node_choices(page) == [], "the only node is not chosen, it is shown"
    assert b'<input type="hidden" id="id_node" name="node" value="one">' in page
    seed.node("two", "two")
    assert _node_choices(operator.client.get("/models/-/new").content) == ["Choose a node", "one", "two"]


def test_a_message_beside_a_field_does_not_repeat_the_fields_name(master, operator):
    answer = operator.client.post("/models/-/new", FORM | {"start_timeout_seconds": "99999999999"}, headers=HX)
    assert ">Input should be less than or equal to 86400<" in answer.content.decode()


def test_an_edit_keeps_what_was_not_touched(master, operator):
    operator.client.post("/models/-/new", FORM | {"secret_env": "HF_TOKEN=value", "args": "--threads\n2"}, headers=HX)
    page = operator.client.get("/models/small-talk/edit").content.decode()
    generation = re.search(r'name="placement_generation" value="(\d+)"', page).group(1)
    form = FORM | {"secret_env": "HF_TOKEN", "args": "--threads\n3", "placement_generation": generation}
    before = bytes(ModelDefinition.objects.get(pk="small-talk").secret_env_sealed)
    answer = operator.client.post("/models/small-talk/edit", form, headers=HX)
    assert answer["HX-Redirect"] == "/models/small-talk"
    model = ModelDefinition.objects.get(pk="small-talk")
    assert model.args == ["--threads", "3"]
    assert bytes(model.secret_env_sealed) == before


def test_the_editor_lists_the_stored_settings_that_are_refused_today(master, operator):
    operator.client.post("/models/-/new", FORM | {"args": "--threads\n2"}, headers=HX)
    assert "cannot be started or saved" not in operator.client.get("/models/small-talk/edit").content.decode()
    ModelDefinition.objects.filter(pk="small-talk").update(
        args=["--threads", "2", "--log-file", "/x"], env={"GCONV_PATH": "/x"}, secret_env_names=["OPENSSL_CONF"]
    )
    page = operator.client.get("/models/small-talk/edit").content.decode()
    assert "cannot be started or saved" in page
    for name in ("--log-file", "GCONV_PATH", "OPENSSL_CONF", "argument_refused", "env_name_refused"):
        assert name in page
    form = FORM | {"args": "--threads\n2\n--log-file\n/x", "env": "GCONV_PATH=/x"}
    refused = operator.client.post("/models/small-talk/edit", form, headers=HX).content.decode()
    assert 'id="id_args_error"' in refused
    assert 'id="id_env_error"' in refused
    Node.objects.filter(pk="local").update(
        capabilities={
            **Node.objects.get(pk="local").capabilities,
            "allowedArgs": {"llama.cpp": ["--log-file"]},
            "allowedEnv": {"llama.cpp": ["GCONV_PATH", "OPENSSL_CONF"], "vllm": ["X"]},
        }
    )
    assert "cannot be started or saved" not in operator.client.get("/models/small-talk/edit").content.decode()
    Node.objects.filter(pk="local").update(lifecycle="revoked")
    assert "cannot be started or saved" in operator.client.get("/models/small-talk/edit").content.decode()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"id": "with/slash"}, "id"),
        ({"id": "qwen3-14b"}, ""),
        ({"image": "somewhere/image"}, "image"),
        ({"folder": "../etc"}, "folder"),
        ({"env": "PATH=/x"}, "env"),
        ({"args": "--port\n80"}, "args"),
        ({"folder": ""}, "folder"),
        ({"served_names": "//"}, "served_names"),
        ({"secret_env": "NEVER_STORED"}, "secret_env"),
        ({"node": "nowhere"}, "node"),
        ({"start_timeout_seconds": "0"}, "start_timeout_seconds"),
        ({"image_digest": "latest", "delivery": "container", "image": "x"}, "image_digest"),
    ],
)
def test_a_wrong_model_is_said_on_the_form(master, operator, change, field):
    answer = operator.client.post("/models/-/new", FORM | change, headers=HX)
    assert answer.status_code == 200
    text = answer.content.decode()
    assert 'role="alert"' in text
    if field:
        assert f'id="id_{field}_error"' in text
    assert not ModelDefinition.objects.filter(pk="small-talk").exists()


def test_what_was_typed_is_not_lost_by_a_refusal(master, operator):
    text = operator.client.post(
        "/models/-/new", FORM | {"id": "A B", "args": "--my-words"}, headers=HX
    ).content.decode()
    assert "--my-words" in text
    assert '<option value="smollm2-135m" selected>' in text


def test_starting_makes_an_operation_that_the_model_page_shows(master, operator):
    answer = operator.client.post("/models/smollm2-135m/stop", headers=HX)
    assert answer.status_code == 204
    operation = Operation.objects.get(model_id_text="smollm2-135m", finished_at=None)
    shown = operator.client.get("/operations/-/of-model/smollm2-135m", headers=HX).content.decode()
    assert "Stop the engine" in shown
    assert operation.person
    assert f"{operation.person} (operator)" in shown


def test_a_start_on_a_node_that_is_away_says_so(master, operator):
    answer = operator.client.post("/models/gemma-3-27b/start", headers=HX)
    assert answer.status_code == 503
    assert "offline" in answer.content.decode()
    assert AuditLine.objects.filter(action="model.start", model_id_text="gemma-3-27b", result="failed").count() == 1


def test_a_start_that_was_refused_for_memory_is_offered_anyway_with_its_numbers(master, operator, viewer):
    Operation.objects.filter(model_id_text="phi-4").delete()
    refused = "Not enough memory: … 3.0 GiB can be used on node atlas (GPU 1)."
    error = {"code": "admission_refused", "detail": refused}
    seed.operation("phi-4", stage="starting", outcome="failed", error=error)
    atlas = Node.objects.get(pk="atlas")
    atlas.default_image, atlas.default_image_digest = "registry.local/vllm", "sha256:" + "a" * 64
    atlas.capabilities |= {"approvedImages": [f"registry.local/vllm@{atlas.default_image_digest}"]}
    atlas.save()
    part = operator.client.get("/operations/-/of-model/phi-4", headers=HX).content.decode()
    assert f'hx-confirm="{refused} Without enough memory' in part
    assert "Start anyway" not in viewer.client.get("/operations/-/of-model/phi-4", headers=HX).content.decode()
    assert operator.client.post("/models/phi-4/start", {"force": "on"}, headers=HX).status_code == 204
    assert Operation.objects.get(model_id_text="phi-4", finished_at=None).input["force"] is True


def test_other_failures_offer_no_start_anyway(master, operator):
    Operation.objects.filter(model_id_text="phi-4").delete()
    seed.operation("phi-4", outcome="failed", error={"code": "gpu_missing", "detail": "Gone."})
    assert "Start anyway" not in operator.client.get("/operations/-/of-model/phi-4", headers=HX).content.decode()


def test_cancelling_is_seen(master, operator):
    operation = Operation.objects.get(model_id_text="qwen3-coder", finished_at=None)
    assert operator.client.post(f"/operations/{operation.pk}/cancel", headers=HX).status_code == 204
    assert b"Cancelling" in operator.client.get(f"/operations/{operation.pk}").content


def test_a_model_that_should_run_is_not_deleted(master, operator):
    answer = operator.client.post("/models/qwen3-14b/delete", headers=HX)
    assert answer.status_code == 409
    assert "stop it first" in answer.content.decode()
    assert operator.client.post("/models/draft-idea/delete", headers=HX)["HX-Redirect"] == "/models"


@pytest.mark.parametrize(
    "url",
    [
        "/models/smollm2-135m/start",
        "/models/smollm2-135m/stop",
        "/models/smollm2-135m/restart",
        "/models/draft-idea/delete",
        "/models/-/new",
        "/models/draft-idea/edit",
        "/keys/new",
        "/keys/1/revoke",
        "/operations/op-1/cancel",
    ],
)
def test_a_viewer_changes_nothing(master, viewer, anybody, url):
    assert viewer.client.post(url, FORM, headers=HX).status_code == 403
    assert anybody.post(url, FORM, headers=HX).status_code == 401


def test_a_key_is_shown_once(master, operator):
    answer = operator.client.post("/keys/new", {"name": "notebook", "lifetime_days": "7"}, headers=HX)
    assert answer["Cache-Control"] == "no-store"
    [secret] = re.findall(r'id="key-secret">(ssk_[\w-]{43})<', answer.content.decode())
    key = ApiKey.objects.get(name="notebook")
    assert key.expires_at is not None
    for page in ("/keys", "/audit"):
        assert secret not in operator.client.get(page).content.decode()
    assert operator.client.post(f"/keys/{key.pk}/revoke", headers=HX).status_code == 204
    assert b"notebook" not in operator.client.get("/keys").content
    assert b"notebook" in operator.client.get("/keys?revoked=1").content


def test_the_overview_names_what_is_wrong(master, viewer, monkeypatch):
    def silent():
        raise Unavailable("It was not reached.")

    monkeypatch.setattr(heartbeat, "alive", silent)
    text = viewer.client.get("/").content.decode()
    for words in (
        "Borealis is offline",
        "Cirrus is degraded",
        "dune waits for approval",
        "Phi 4 failed",
        "Qwen3 Embedding is unhealthy",
        "Gemma 3 27B: no status",
        "Qwen3 14B needs a restart to apply changes",
        "The broker does not respond",
    ):
        assert words in text


def test_the_log_of_a_model_that_never_ran_says_so(master, viewer):
    assert b"Never started here" in viewer.client.get("/models/gemma-3-27b/log", headers=HX).content


def test_the_log_of_a_node_that_is_away_is_a_sentence_and_waits_for_nobody(master, viewer, monkeypatch):
    asked = []
    monkeypatch.setattr(client, "call", lambda *call, **_: asked.append(call))
    Placement.objects.filter(model_id="gemma-3-27b").update(observed_view={"state": "ready"})
    text = viewer.client.get("/models/gemma-3-27b/log", headers=HX).content.decode()
    assert "Node borealis is offline" in text
    assert "Never started here" not in text
    assert asked == []


def test_the_playground_refuses_in_json(master, viewer):
    answer = viewer.client.post("/playground/stream", b"{", content_type="application/json")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unavailable"


def test_pages_of_operations_lead_on(master, viewer):
    for number in range(55):
        seed.operation("phi-4", outcome="succeeded", stage=f"s{number}")
    first = viewer.client.get("/operations?state=succeeded").content.decode()
    older = re.search(r'href="(\?state=succeeded&amp;before=op-[0-9a-f]+)"', first).group(1).replace("&amp;", "&")
    second = viewer.client.get(f"/operations{older}").content.decode()
    ids = [set(re.findall(r'id="row-(op-[0-9a-f]+)"', page)) for page in (first, second)]
    assert len(ids[0]) == 50
    assert len(ids[1]) == 8
    assert not ids[0] & ids[1]
