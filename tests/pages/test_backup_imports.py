"""The page of an import: upload, preview with targets and options, confirmation, operation."""

import re
import shutil

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from audit.models import AuditLine
from jobs.backup import sealed
from jobs.models import Operation
from mirbad.kernel.conf import settings
from models_app.models import ModelDefinition, Placement
from nodes.models import Node
from tests.jobs.backup.fleet import CANARY, PASSPHRASE, fill
from tests.jobs.backup.importing.fleets import RTX, backed_up, forget_all, machine
from tests.models_app.things import node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True)]
URL = "/backup/import"
ALL = {"start_models": "on", "node_settings": "on", "start_times": "on"}


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
    machine("big", RTX | {"uuid": "GPU-6"})
    node("spark", address="192.0.2.50")
    return (tmp_path / "fleet-0.backup").read_bytes()


def upload(person, content, passphrase=PASSPHRASE):
    return person.client.post(URL, {"file": SimpleUploadedFile("fleet.backup", content), "passphrase": passphrase})


def digest(answer):
    return re.search(r'name="digest" value="([0-9a-f]{64})"', answer.content.decode())[1]


def test_only_an_owner_sees_it(people, file):
    kept = upload(people["owner"], file)["Location"]
    for name, person in people.items():
        allowed = 200 if name == "owner" else 403
        assert person.client.get(URL).status_code == allowed, name
        assert person.client.get(kept).status_code == allowed, name
    for name in ("operator", "viewer", "stranger"):
        assert upload(people[name], file).status_code == 403
        assert people[name].client.post(f"{kept}/confirm", {}).status_code == 403


def test_from_the_upload_to_the_operation(owner, file):
    answer = upload(owner, file)
    assert answer.status_code == 302
    page = answer["Location"]
    shown = owner.client.get(page)
    text = shown.content.decode()
    assert "3 models were on machines that are not here" in text
    assert 'name="node:pc-1"' in text
    assert 'name="model:m0"' in text
    assert CANARY not in text
    assert re.search(r'<button[^>]*formaction="[^"]*/confirm"[^>]*disabled', text)
    chosen = ALL | {"node:pc-1": "spark", "model:m1": "big", "model:m2": "unplaced"}
    shown = owner.client.post(page, chosen)
    text = shown.content.decode()
    assert "Models: 3 created" in text
    assert 'value="unplaced"' in text
    assert "It gets GPU 0 of node big" in text
    assert not re.search(r'<button[^>]*formaction="[^"]*/confirm"[^>]*disabled', text)
    assert not ModelDefinition.objects.exists()
    done = owner.client.post(f"{page}/confirm", chosen | {"digest": digest(shown)})
    operation = Operation.objects.get()
    assert (done.status_code, done["Location"]) == (302, f"/operations/{operation.pk}")
    assert sorted(Placement.objects.values_list("model_id", "node_id_text")) == [("m0", "spark"), ("m1", "big")]
    text = owner.client.get(done["Location"]).content.decode()
    assert "Configuration import of" in text
    assert "Model m2: It is restored unplaced, as chosen." in text
    assert owner.client.get(page).status_code == 404


def test_choices_that_were_not_previewed_are_shown_first(owner, file):
    page = upload(owner, file)["Location"]
    first = owner.client.post(page, ALL | {"node:pc-1": "spark"})
    answer = owner.client.post(f"{page}/confirm", ALL | {"node:pc-1": "big", "digest": digest(first)})
    assert answer.status_code == 409
    assert "Something else would be written now than was previewed" in answer.content.decode()
    assert not Operation.objects.exists()
    again = owner.client.post(f"{page}/confirm", ALL | {"node:pc-1": "big", "digest": digest(answer)})
    assert again.status_code == 302
    assert set(Placement.objects.values_list("node_id_text", flat=True)) == {"big"}


def test_a_master_that_changed_shows_the_new_preview_in_place(owner, file):
    page = upload(owner, file)["Location"]
    sent = ALL | {"others_unplaced": "on"}
    first = owner.client.post(page, sent)
    placed("m1", "spark")
    answer = owner.client.post(f"{page}/confirm", sent | {"digest": digest(first)}, headers={"HX-Request": "true"})
    text = answer.content.decode()
    assert answer.status_code == 200
    assert text.lstrip().startswith("<form")
    assert "restore_changed" in text
    assert "Differs: tags, secret variables" in text
    assert AuditLine.objects.get(action="restore").result == "refused"


def test_a_target_that_is_not_there_is_refused_in_place(owner, file):
    page = upload(owner, file)["Location"]
    answer = owner.client.post(page, ALL | {"model:m0": "nowhere"})
    assert answer.status_code == 400
    assert "does not exist here" in answer.content.decode()
    answer = owner.client.post(f"{page}/confirm", ALL | {"digest": digest(answer)})
    assert (answer.status_code, Operation.objects.count()) == (400, 0)
    assert "placement_required" in answer.content.decode()


@pytest.mark.parametrize(
    ("content", "passphrase", "said"),
    [(b"no backup", "", "is not a backup of Mirbad"), (None, "another passphrase", "the passphrase is another one")],
)
def test_a_file_that_cannot_be_read_is_refused_on_the_form(owner, file, content, passphrase, said):
    answer = upload(owner, file if content is None else content, passphrase)
    text = answer.content.decode()
    assert answer.status_code == 400
    assert said in text
    assert 'type="file"' in text
    assert "another passphrase" not in text
    assert AuditLine.objects.get(action="restore").error_code == "backup_unsuitable"


def test_a_form_without_a_file_says_so(owner):
    assert "This field is required" in owner.client.post(URL, {}).content.decode()


def test_an_upload_of_another_person_is_not_there(owner, file):
    page = upload(owner, file)["Location"]
    owner.user.username = "somebody-else"
    owner.user.save()
    answer = owner.client.get(page)
    assert answer.status_code == 404
    assert "uploads are kept for an hour" in answer.content.decode()
    assert owner.client.post(f"{page}/confirm", {}).status_code == 404


def test_changed_settings_are_readable(owner, tmp_path):
    fill()
    backed_up(tmp_path)
    Node.objects.filter(pk="pc-1").update(labels={}, memory_reserve_bytes=None)
    page = upload(owner, (tmp_path / "fleet-0.backup").read_bytes())["Location"]
    text = owner.client.get(page).content.decode()
    assert "Labels: none → room=attic" in text
    assert "Memory reserve: none → 1 GiB" in text
    assert text.count("The backup has none") == 1, "no destination"


def test_many_models_are_cut_and_cost_no_more_queries(owner, tmp_path, django_assert_max_num_queries):
    fill(models=220)
    backed_up(tmp_path)
    forget_all()
    node("spark", address="192.0.2.50")
    page = upload(owner, (tmp_path / "fleet-0.backup").read_bytes())["Location"]
    with django_assert_max_num_queries(40):
        text = owner.client.get(page).content.decode()
    assert "20 more are not shown" in text
    assert text.count('name="model:') == 200
