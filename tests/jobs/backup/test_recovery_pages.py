"""The pages of the recovery mode: nothing else is there, only an owner gets in, and one form installs the backup."""

import json
import shutil

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.test import Client

from audit.models import AuditLine
from jobs.backup import installation, making, sealed, uploads
from mirbad.accounts.people import ensure_admin
from mirbad.kernel.conf import settings
from models_app.models import ModelDefinition
from nodes.models import Node
from nodes.pki import authority
from tests.jobs.backup.fleet import PASSPHRASE, fill
from tests.models_app.things import PERSON
from tests.people import _person

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True), pytest.mark.urls("mirbad.recovery_urls")]

PASSWORD = "a password of the admin"


@pytest.fixture(autouse=True)
def _cheap(monkeypatch):
    monkeypatch.setattr(sealed, "_MEMORY_KIB", 64)


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    chosen = settings().model_copy(update={"data": folder, "recovery_mode": "fleet-restore"})
    monkeypatch.setattr(installation, "settings", lambda: chosen)
    yield folder
    shutil.rmtree(settings().data / "uploads", ignore_errors=True)


@pytest.fixture
def content(tmp_path):
    """A backup of a fleet, and an empty master with its admin."""
    fill()
    Node.objects.create(pk="pc-2", address="192.0.2.9", lifecycle="pending")
    making.create(tmp_path / "fleet.backup", PASSPHRASE, PERSON)
    call_command("flush", verbosity=0, interactive=False)
    shutil.rmtree(settings().data / "audit", ignore_errors=True)
    ensure_admin(PASSWORD)
    return (tmp_path / "fleet.backup").read_bytes()


@pytest.fixture
def client(request):
    """A browser in which the admin is logged in; on the empty master, where there is a backup."""
    if "content" in request.fixturenames:
        request.getfixturevalue("content")
    browser = Client()
    ensure_admin(PASSWORD)
    answer = browser.post("/login", {"username": "admin", "password": PASSWORD})
    assert (answer.status_code, answer["Location"]) == (302, "/")
    return browser


def upload(client, content, passphrase=PASSPHRASE, name="monday.backup"):
    file = SimpleUploadedFile(name, content)
    return client.post("/backup/recover/upload", {"file": file, "passphrase": passphrase})


def uploaded(client, content):
    answer = upload(client, content)
    assert answer.status_code == 302, answer.content.decode()
    return answer["Location"]


def install(client, location, **values):
    sent = {"upload": location.partition("=")[2], "stopped": "yes", **values}
    return client.post("/backup/recover/install", sent)


def words(answer):
    return answer.content.decode()


@pytest.mark.parametrize("path", ["/", "/nodes", "/models/new", "/admin/", "/static-not", "/backup/elsewhere", "/apix"])
@pytest.mark.parametrize("method", ["get", "post"])
def test_every_other_page_leads_to_the_recovery(client, path, method):
    answer = getattr(client, method)(path)
    assert (answer.status_code, answer["Location"]) == (303, "/backup")
    part = getattr(client, method)(path, headers={"HX-Request": "true"})
    assert (part.status_code, part["HX-Redirect"]) == (204, "/backup")


@pytest.mark.parametrize(
    "path", ["/api/nodes", "/api", "/api/", "/metrics", "/agent/bundles", "/agent/bundles/linux.tar.gz"]
)
@pytest.mark.parametrize("method", ["get", "post", "delete"])
def test_machines_get_503(anybody, path, method):
    answer = getattr(Client(enforce_csrf_checks=True), method)(path)
    assert answer.status_code == 503
    assert json.loads(answer.content)["code"] == "recovery_mode"
    assert answer["Retry-After"] == "30"


def test_it_is_alive_and_not_ready(anybody):
    assert anybody.get("/healthz").status_code == 200
    answer = anybody.get("/readyz")
    assert (answer.status_code, answer.json()["ready"]) == (503, False)
    assert "recovery mode" in answer.json()["reasons"][0]


@pytest.mark.parametrize("name", ["operator", "viewer", "stranger"])
def test_only_an_owner_gets_in(content, name):
    person = _person(name)
    assert person.client.get("/backup").status_code == 403
    assert upload(person.client, content).status_code == 403
    assert install(person.client, "?upload=x").status_code == 403
    assert not list((settings().data / "uploads").glob("*"))


def test_without_a_log_in_there_is_the_log_in_alone(content, anybody):
    for answer in (anybody.get("/backup"), upload(anybody, content), install(anybody, "?upload=x")):
        assert answer.status_code == 302
        assert answer["Location"].startswith("/login?next=")
    assert not ModelDefinition.objects.exists()


def test_a_form_of_another_site_is_refused(client, content):
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = client.cookies
    assert upload(strict, content).status_code == 403
    assert install(strict, "?upload=x").status_code == 403


def test_log_ins_are_counted_without_a_broker(anybody):
    codes = [anybody.post("/login", {"username": "admin", "password": "wrong"}).status_code for _ in range(6)]
    assert codes == [403] * 5 + [429]


def test_the_first_page_asks_for_a_backup(client):
    page = words(client.get("/backup"))
    assert "Recovery mode." in page
    assert 'name="file"' in page
    assert "Install backup" not in page


def test_the_preview_shows_what_will_be_there(client, content):
    page = words(client.get(uploaded(client, content)))
    for text in ("monday.backup", "pc-1", "192.0.2.7", "m0", "Never enrolled", "ada", "The previous master is stopped"):
        assert text in page, text
    assert PASSPHRASE not in page
    assert not Node.objects.exists()


@pytest.mark.parametrize(
    ("change", "passphrase", "said"),
    [
        (lambda text: text, "another one", "the passphrase is another one"),
        (lambda text: text[:-7], PASSPHRASE, "damaged"),
        (lambda text: b"holiday", PASSPHRASE, "not a backup of Mirbad"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_reason(client, content, change, passphrase, said):
    answer = upload(client, change(content), passphrase)
    assert answer.status_code == 400
    assert said in words(answer)
    assert "backup_unsuitable" in words(answer)
    assert list((settings().data / "uploads").iterdir()) == []


def test_a_backup_without_the_ca_is_refused_before_it_is_shown(client, tmp_path, monkeypatch):
    fill(1)
    without = settings().model_copy(update={"backup_include_ca": False})
    monkeypatch.setattr("jobs.backup.collect.settings", lambda: without)
    making.create(tmp_path / "no-ca", PASSPHRASE, PERSON)
    answer = upload(client, (tmp_path / "no-ca").read_bytes())
    assert answer.status_code == 400
    assert "no key of the CA" in words(answer)
    assert list((settings().data / "uploads").iterdir()) == []


def test_without_a_file_it_asks_for_one(client):
    answer = client.post("/backup/recover/upload", {"passphrase": PASSPHRASE})
    assert (answer.status_code, "Choose the file" in words(answer)) == (400, True)


def test_an_upload_of_somebody_else_is_not_shown(client, content):
    location = uploaded(client, content)
    other = _person("owner")
    answer = other.client.get(location)
    assert answer.status_code == 404
    assert "Upload it again" in words(answer)
    assert install(other.client, location).status_code == 404
    assert not ModelDefinition.objects.exists()


def test_it_asks_whether_the_previous_master_is_stopped(client, content):
    location = uploaded(client, content)
    answer = install(client, location, stopped="")
    assert answer.status_code == 409
    assert "Confirm that the previous master is stopped" in words(answer)
    assert "monday.backup" in words(answer), "the preview is still there"
    assert not ModelDefinition.objects.exists()
    assert AuditLine.objects.filter(action="restore", result="refused").exists()


def test_a_confirmed_backup_is_installed(client, content, data):
    answer = install(client, uploaded(client, content))
    assert answer.status_code == 200
    assert "The backup is installed" in words(answer)
    assert "Node pc-2 was waiting for its approval" in words(answer)
    assert ModelDefinition.objects.count() == 3
    assert (data / "takeover").exists()
    assert list((settings().data / "uploads").iterdir()) == []
    assert installation.installed().backup == "monday.backup"
    line = AuditLine.objects.get(action="restore", result="succeeded")
    assert (line.actor, line.target) == ("system:restore", "monday.backup")
    assert line.detail.endswith("asked by admin on the page")
    assert PASSPHRASE not in line.detail


def test_a_form_that_is_sent_twice_says_that_the_backup_is_installed(client, content, data):
    location = uploaded(client, content)
    assert install(client, location).status_code == 200
    again = install(client, location)
    assert again.status_code == 200
    assert "The backup is installed" in again.content.decode()


def test_a_master_with_something_of_its_own_says_what(client, content):
    location = uploaded(client, content)
    authority.ensure()
    page = words(client.get("/backup"))
    assert "This master is not empty" in page
    assert "certificate authority" in page
    assert 'name="file"' not in page
    answer = install(client, location)
    assert answer.status_code == 409
    assert "master_not_empty" in words(answer)


def test_the_passphrase_is_never_logged(client, content, caplog):
    with caplog.at_level("DEBUG"):
        install(client, uploaded(client, content))
    assert PASSPHRASE not in caplog.text


def test_uploads_are_kept_for_the_person_alone(client, content):
    location = uploaded(client, content)
    assert uploads.find(location.partition("=")[2], "admin").name == "monday.backup"
