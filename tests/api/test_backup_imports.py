"""Import of a backup by a program: upload and preview, choices, and the confirmation of exactly that plan."""

import json
import shutil

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from audit.models import AuditLine
from jobs.backup import sealed
from jobs.models import Operation
from mirbad.kernel.conf import settings
from models_app.models import ModelDefinition, Placement
from tests.jobs.backup.fleet import CANARY, PASSPHRASE, fill
from tests.jobs.backup.importing.fleets import RTX, backed_up, forget_all, machine
from tests.models_app.things import GIB, node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True)]
URL = "/api/backups/imports"


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)
    shutil.rmtree(settings().data / "uploads", ignore_errors=True)
    (settings().data / "uploads").mkdir()


@pytest.fixture
def file(tmp_path):
    """The bytes of a backup of other machines than those of this master."""
    fill()
    backed_up(tmp_path)
    forget_all()
    machine("big", RTX | {"uuid": "GPU-6"}, {"uuid": "GPU-7", "name": "H100", "memory": 80 * GIB})
    node("spark", address="192.0.2.50")
    return (tmp_path / "fleet-0.backup").read_bytes()


def upload(person, content, **fields):
    body = {"file": SimpleUploadedFile("fleet.backup", content), **fields}
    return person.client.post(URL, body)


def send(person, path, body):
    return person.client.post(f"{URL}/{path}", json.dumps(body), content_type="application/json")


def models(document):
    return {model["id"]: model for model in document["preview"]["models"]}


def test_only_an_owner_imports(people, file):
    for name, person in people.items():
        answer = upload(person, file, passphrase=PASSPHRASE)
        assert answer.status_code == (201 if name == "owner" else 403), name
    upload_id = upload(people["owner"], file, passphrase=PASSPHRASE).json()["id"]
    for name in ("operator", "viewer", "stranger"):
        assert people[name].client.get(f"{URL}/{upload_id}").status_code == 403
        assert send(people[name], f"{upload_id}/preview", {}).status_code == 403
        assert send(people[name], f"{upload_id}/confirm", {"digest": "0" * 64}).status_code == 403
        assert people[name].client.delete(f"{URL}/{upload_id}").status_code == 403


def test_an_import_from_its_upload_to_its_operation(owner, file):
    answer = upload(owner, file, passphrase=PASSPHRASE)
    found = answer.json()
    assert (answer.status_code, answer["Location"]) == (201, f"http://testserver{URL}/{found['id']}")
    assert found["name"] == "fleet.backup"
    assert [one["needsTarget"] for one in found["preview"]["models"]] == [True, True, True]
    assert found["preview"]["options"] == {
        "startModels": True,
        "nodeSettings": False,
        "startTimes": True,
        "destinations": False,
    }
    assert found["preview"]["nodes"][0] == {
        "id": "pc-1", "match": "none", "nodeId": "", "models": 3, "unresolved": 3, "settings": [], "notes": [],
    }  # fmt: skip
    assert owner.client.get(f"{URL}/{found['id']}").json() == found
    choices = {
        "targets": [
            {"backupNodeId": "pc-1", "nodeId": "spark"},
            {"modelId": "m1", "nodeId": "big", "gpuUuids": ["GPU-6"]},
            {"modelId": "m2", "unplaced": True},
        ],
        "options": {"startTimes": False},
    }
    shown = send(owner, f"{found['id']}/preview", choices).json()
    assert models(shown)["m1"]["places"] == [{"nodeId": "big", "gpuUuids": ["GPU-6"], "shard": 0, "shards": 1}]
    assert models(shown)["m2"]["notes"] == ["It is restored unplaced, as chosen."]
    assert not ModelDefinition.objects.exists()
    done = send(owner, f"{found['id']}/confirm", {**choices, "digest": shown["preview"]["digest"]})
    assert (done.status_code, done.json()["kind"]) == (202, "restore")
    assert done["Location"] == f"http://testserver/api/operations/{done.json()['id']}"
    assert sorted(Placement.objects.values_list("model_id", "node_id_text")) == [("m0", "spark"), ("m1", "big")]
    line = AuditLine.objects.get(action="restore")
    assert (line.actor, line.person, line.result) == ("system:restore", "owner", "accepted")
    assert "asked by owner" in line.detail
    texts = [answer.content, json.dumps(shown), done.content, json.dumps(list(AuditLine.objects.values()), default=str)]
    assert not [text for text in texts if CANARY in str(text) or PASSPHRASE in str(text)]


def test_a_plan_that_changed_is_refused_with_the_new_one(owner, file):
    found = upload(owner, file, passphrase=PASSPHRASE).json()
    choices = {"othersUnplaced": True}
    digest = send(owner, f"{found['id']}/preview", choices).json()["preview"]["digest"]
    placed("m1", "spark")
    answer = send(owner, f"{found['id']}/confirm", {**choices, "digest": digest})
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "restore_changed")
    new = problem["preview"]
    assert {one["id"]: one["action"] for one in new["models"]}["m1"] == "changed"
    assert not Operation.objects.exists()
    assert send(owner, f"{found['id']}/confirm", {**choices, "digest": new["digest"]}).status_code == 202


def test_without_targets_nothing_is_confirmed(owner, file):
    found = upload(owner, file, passphrase=PASSPHRASE).json()
    answer = send(owner, f"{found['id']}/confirm", {"digest": found["preview"]["digest"]})
    assert (answer.status_code, answer.json()["code"]) == (400, "placement_required")
    assert [one["field"] for one in answer.json()["problems"]] == ["m0", "m1", "m2"]
    line = AuditLine.objects.get(action="restore")
    assert (line.result, line.person) == ("refused", "owner")


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ({"modelId": "m0", "nodeId": "nowhere"}, "node_unknown"),
        ({"modelId": "m0", "nodeId": "big", "gpuUuids": ["GPU-6", "GPU-7"]}, "placement_invalid"),
        ({"modelId": "m0"}, "target_invalid"),
    ],
)
def test_a_target_that_is_none_is_refused(owner, file, target, code):
    upload_id = upload(owner, file, passphrase=PASSPHRASE).json()["id"]
    answer = send(owner, f"{upload_id}/preview", {"targets": [target]})
    assert (answer.status_code, answer.json()["problems"][0]["code"]) == (400, code)


@pytest.mark.parametrize(
    ("content", "passphrase", "said"),
    [
        (b"no backup", "", "is not a backup of Mirbad"),
        (b"", "", "is not a backup of Mirbad"),
        (None, "another passphrase", "the passphrase is another one"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(owner, file, content, passphrase, said):
    answer = upload(owner, file if content is None else content, passphrase=passphrase)
    assert (answer.status_code, answer.json()["code"]) == (400, "backup_unsuitable")
    assert said in answer.json()["detail"]
    assert list((settings().data / "uploads").iterdir()) == []


def test_without_the_passphrase_keys_are_left_out(owner, file):
    shown = upload(owner, file).json()["preview"]
    assert (shown["withSecrets"], shown["keys"]) == (False, [])
    assert shown["notes"][0].startswith("Read without the passphrase")


@pytest.mark.parametrize("body", [{}, {"file": "text"}, {"other": "1"}])
def test_a_form_without_a_file_is_refused(owner, body):
    assert owner.client.post(URL, body).status_code == 400


def test_an_upload_is_its_persons_and_can_be_removed(owner, file):
    upload_id = upload(owner, file).json()["id"]
    owner.user.username = "somebody-else"
    owner.user.save()
    assert owner.client.get(f"{URL}/{upload_id}").status_code == 404
    owner.user.username = "owner"
    owner.user.save()
    assert owner.client.delete(f"{URL}/{upload_id}").status_code == 204
    assert owner.client.get(f"{URL}/{upload_id}").status_code == 404
    assert owner.client.get(f"{URL}/nothing").status_code == 404
