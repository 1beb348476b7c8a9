"""After a recovery: who has answered, what is left to do, and the setting that is still there."""

import json

import pytest

from jobs.backup import installation
from jobs.loops import configured_takeover
from jobs.pages.contexts import fencing as banners
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from nodes import fencing
from nodes.models import Node
from nodes.pki import authority
from tests.models_app.things import node

pytestmark = [pytest.mark.app, pytest.mark.django_db]

HX = {"HX-Request": "true"}


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The data folder of a recovered master whose takeover is still to come, and whose setting is still there."""
    authority.ensure()
    chosen = settings().model_copy(update={"data": tmp_path, "recovery_mode": "fleet-restore"})
    for module in (installation, configured_takeover, banners):
        monkeypatch.setattr(module, "settings", lambda: chosen)
    now = clock.now().isoformat()
    record = {
        "backup": "monday.zip",
        "madeAt": now,
        "instanceId": "0" * 32,
        "installedAt": now,
        "notes": ["Re-pair it."],
    }
    (tmp_path / "recovery-installed.json").write_text(json.dumps(record))
    (tmp_path / "takeover").touch()
    return tmp_path


def text(answer):
    return " ".join(answer.content.decode().split())


def test_a_master_that_was_not_recovered_has_no_such_page(viewer):
    assert viewer.client.get("/backup/recovered").status_code == 404


def test_strangers_log_in_first(anybody, data):
    assert anybody.get("/backup/recovered")["Location"].startswith("/login")
    assert anybody.get("/backup/recovered?restarted", headers=HX)["HX-Redirect"] == "/login"


def test_the_page_counts_who_has_answered(viewer, data):
    node("pc-1")
    Node.objects.create(pk="pc-2", address="192.0.2.9", lifecycle="pending")
    page = text(viewer.client.get("/backup/recovered"))
    assert "Recovered from monday.zip" in page
    assert "takes the nodes over by itself. 1 of 2 answered." in page
    assert "Re-pair it." in page
    (data / "takeover").unlink()
    part = text(viewer.client.get("/backup/recovered", headers=HX))
    assert "The takeover is complete. 1 of 2 nodes answer." in part
    assert "<html" not in part


def test_the_page_that_waited_for_the_restart_is_led_there(viewer, data):
    answer = viewer.client.get("/backup/recovered?restarted", headers=HX)
    assert (answer.status_code, answer["HX-Redirect"]) == (204, "/backup/recovered")


def test_the_overview_says_that_the_takeover_comes(viewer, data):
    assert "This master was recovered from monday.zip" in text(viewer.client.get("/"))
    (data / "takeover").unlink()
    assert "This master was recovered from" not in text(viewer.client.get("/"))


def test_the_banner_names_the_setting_and_says_that_nobody_needs_to_take_over(operator, data):
    fencing.fence("This data was written by another installation.")
    page = text(operator.client.get("/"))
    assert "A takeover is requested and starts by itself." in page
    assert "MIRBAD_RECOVERY_MODE=fleet-restore is still set, but a fleet recovery already finished in" in page
    (data / "takeover").unlink()
    (data / "recovery-installed.json").unlink()
    page = text(operator.client.get("/"))
    assert "starts by itself" not in page
    assert "is still set" not in page
