"""A person's actions on nodes, and the text of each refusal."""

import re
from datetime import timedelta

import pytest
from django.urls import reverse

from audit.models import AuditLine
from mirbad.kernel import clock
from nodes.models import JoinToken, Node, NodePin
from nodes.pki import authority
from tests.pages import seed

pytestmark = pytest.mark.app
HX = {"HX-Request": "true"}


@pytest.fixture
def master(db):
    authority.ensure()
    seed.fleet()


def test_a_join_command_shows_its_token_once_and_in_no_cache(master, operator):
    answer = operator.client.post("/nodes/-/add", {"node_id": "forge", "display_name": "Forge", "ttl_minutes": "30"})
    assert answer.status_code == 200
    assert answer["Cache-Control"] == "no-store"
    [token] = re.findall(r'id="join-token">([0-9a-f]{16}\.[\w-]{43})<', answer.content.decode())
    row = JoinToken.objects.get(node_id_text="forge")
    assert token.startswith(row.id)
    for page in ("/nodes", "/nodes/-/add", "/nodes/-/join/forge", "/audit"):
        secret = token.partition(".")[2]
        assert secret not in operator.client.get(page, headers=HX).content.decode()


BESIDE_THE_FIELD = '<ul class="errors" id="id_node_id_error">'
OF_THE_RULE = '<div class="code mono">invalid_request</div>'
OF_THE_NODE = '<div class="code mono">invalid_state</div>'


@pytest.mark.parametrize(
    ("node_id", "refusal"),
    [
        ("Atlas", OF_THE_RULE),
        ("a b", BESIDE_THE_FIELD),
        ("join-tokens", OF_THE_RULE),
        ("atlas", OF_THE_NODE),
        ("-x", OF_THE_RULE),
    ],
)
def test_a_join_command_for_an_id_that_cannot_be_is_refused_on_the_form(master, operator, node_id, refusal):
    answer = operator.client.post("/nodes/-/add", {"node_id": node_id, "ttl_minutes": "60"}, headers=HX)
    assert answer.status_code == 200
    text = answer.content.decode()
    assert "join-token" not in text.replace("join-tokens", "")
    assert refusal in text
    assert text.count('role="alert"') == (refusal != BESIDE_THE_FIELD), "it is said once"
    assert not JoinToken.objects.filter(node_id_text=node_id).exists()


def test_withdrawing_a_token_ends_it(master, operator):
    answer = operator.client.post("/nodes/-/join/ember/withdraw", headers=HX)
    assert answer.status_code == 204
    assert "revoked" in answer["HX-Trigger"]
    assert b"expired unused" in operator.client.get("/nodes/-/join/ember", headers=HX).content


def test_approval_pins_the_key_that_the_person_saw(master, operator):
    page = operator.client.get("/nodes/dune").content.decode()
    assert f'name="expected_spki" value="{seed.spki("dune")}"' in page
    wrong = operator.client.post("/nodes/dune/approve", {"expected_spki": seed.spki("another")}, headers=HX)
    assert wrong.status_code == 409
    assert b'role="alert"' in wrong.content
    assert Node.objects.get(pk="dune").lifecycle == "pending"
    line = AuditLine.objects.get(action="node.approve", node_id_text="dune")
    assert line.result == "refused"
    right = operator.client.post("/nodes/dune/approve", {"expected_spki": seed.spki("dune")}, headers=HX)
    assert right.status_code == 204
    assert Node.objects.get(pk="dune").lifecycle == "approved"


def test_a_rejected_node_is_gone(master, operator):
    answer = operator.client.post("/nodes/dune/reject", headers=HX)
    assert answer["HX-Redirect"] == "/nodes"
    assert not Node.objects.filter(pk="dune").exists()


def test_actions_work_without_script(master, operator):
    answer = operator.client.post("/nodes/-/drain/local", {"evacuate": ""}, follow=True)
    assert answer.redirect_chain == [("/nodes/local", 302)]
    assert "Draining" in answer.content.decode()
    assert "Draining" in answer.content.decode()
    assert "Online" in operator.client.post("/nodes/local/undrain", follow=True).content.decode()


@pytest.mark.parametrize("action", ["approve", "reject", "undrain", "save"])
def test_a_viewer_changes_nothing(master, viewer, action):
    assert viewer.client.post(f"/nodes/dune/{action}", headers=HX).status_code == 403
    assert Node.objects.get(pk="dune").lifecycle == "pending"


def test_only_changed_settings_are_saved(master, operator):
    form = {"display_name": "Big one", "address": "10.0.0.20", "port": "9443", "labels": "rack=b2\nzone=north"}
    node = Node.objects.get(pk="atlas")
    answer = operator.client.post("/nodes/atlas/save", form | {"address": node.address}, headers=HX)
    assert answer["HX-Redirect"] == "/nodes/atlas/settings"
    node.refresh_from_db()
    assert (node.display_name, node.labels) == ("Big one", {"rack": "b2", "zone": "north"})
    assert AuditLine.objects.get(action="node.update").detail == "display_name, labels"


def test_a_wrong_setting_is_said_beside_its_field(master, operator):
    form = {"address": "10.0.0.20", "port": "99999", "labels": "no equals sign", "default_image_digest": "latest"}
    answer = operator.client.post("/nodes/atlas/save", form, headers=HX).content.decode()
    for field in ("port", "labels", "default_image_digest"):
        assert f'id="id_{field}_error"' in answer


def test_unknown_reads_not_reported(db, viewer):
    Node.objects.create(id="bare", address="10.0.0.1", lifecycle="approved")
    text = viewer.client.get("/nodes/bare").content.decode()
    assert "not reported" in text
    assert "0 %" not in text
    assert "0 B" not in text
    home = viewer.client.get(reverse("home")).content.decode()
    assert "bare is offline" in home


def test_a_rekey_command_names_the_uid_and_shows_its_token_once(master, operator):
    NodePin.objects.filter(node_id="atlas").delete()
    NodePin.objects.create(node_id="atlas", slot="current", spki_sha256=seed.spki("atlas"))
    answer = operator.client.post("/nodes/-/rekey/atlas", {"ttl_minutes": "60"}, headers=HX)
    text = answer.content.decode()
    assert answer["Cache-Control"] == "no-store"
    assert re.search(r'id="join-token">[0-9a-f]{16}\.[\w-]{43}<', text)
    assert f"--rekey --node-uid {Node.objects.get(pk='atlas').uid}" in text
    assert "Waiting for the machine" in text
    assert b"presents its new key" in operator.client.get("/nodes/-/join/atlas", headers=HX).content
    JoinToken.objects.filter(node_id_text="atlas").update(used_at=clock.now(), used_by_spki=seed.spki("new"))
    after = operator.client.get("/nodes/-/join/atlas", headers=HX).content.decode()
    assert seed.spki("new")[:4] in after


def test_the_machine_of_the_master_gets_a_command_for_its_own_agent(master, operator):
    NodePin.objects.filter(node_id="local").delete()
    NodePin.objects.create(node_id="local", slot="current", spki_sha256=seed.spki("local"))
    Node.objects.filter(pk="local").update(is_bootstrap=True)
    text = operator.client.post("/nodes/-/rekey/local", {"ttl_minutes": "60"}, headers=HX).content.decode()
    assert "-m agent join --rekey" in text
    assert "agent/agent.json" in text
    assert "install.sh" not in text


def test_a_node_without_a_key_cannot_be_re_paired(master, operator):
    NodePin.objects.filter(node_id="atlas").delete()
    answer = operator.client.post("/nodes/-/rekey/atlas", {"ttl_minutes": "60"}, headers=HX)
    assert b"invalid_state" in answer.content
    assert not JoinToken.objects.filter(node_id_text="atlas").exists()


def test_a_revoke_wants_the_id_and_a_word_about_the_models(master, operator):
    page = operator.client.get("/nodes/-/revoke/atlas").content.decode()
    assert "Stop and unplace" in page
    wrong = operator.client.post("/nodes/-/revoke/atlas", {"confirm": "atlass"}, headers=HX)
    assert (wrong.status_code, b"confirmation_required" in wrong.content) == (409, True)
    placed = operator.client.post("/nodes/-/revoke/atlas", {"confirm": "atlas"}, headers=HX)
    assert (placed.status_code, b"models_placed" in placed.content) == (409, True)
    assert not Node.objects.get(pk="atlas").draining
    assert AuditLine.objects.filter(action="node.revoke", result="refused").count() == 2


def test_the_menu_of_a_node_offers_what_its_state_allows(master, operator, viewer):
    Node.objects.filter(pk="atlas").update(cert_not_after=clock.now() - timedelta(days=1))
    atlas = operator.client.get("/nodes/atlas").content.decode()
    assert "Accept once" in atlas
    assert "Rotate certificate" not in atlas
    Node.objects.filter(pk="atlas").update(cert_not_after=clock.now() + timedelta(days=80))
    assert "Rotate certificate" in operator.client.get("/nodes/atlas").content.decode()
    assert "Reject…" in operator.client.get("/nodes/dune").content.decode()
    assert 'popovertarget="menu-' not in viewer.client.get("/nodes").content.decode()


def test_a_rotation_of_a_node_that_is_away_says_so(master, operator):
    Node.objects.filter(pk="atlas").update(reachability="offline")
    refused = operator.client.post("/nodes/-/rotate/atlas", headers=HX)
    assert (refused.status_code, b"node_offline" in refused.content) == (503, True)


def test_the_settings_send_only_what_was_changed(master, operator):
    Node.objects.filter(pk="atlas").update(display_name="Old", default_image="repo/x")
    form = operator.client.get("/nodes/atlas/settings").context["form"]
    data = {name: value for name, value in form.initial.items() if value is not None}
    Node.objects.filter(pk="atlas").update(default_image="repo/changed-elsewhere")
    operator.client.post("/nodes/atlas/save", data | {"display_name": "New", "default_image": "repo/changed-elsewhere"})
    row = Node.objects.get(pk="atlas")
    assert (row.display_name, row.default_image) == ("New", "repo/changed-elsewhere")
    assert AuditLine.objects.filter(action="node.update").latest("id").detail == "display_name"
