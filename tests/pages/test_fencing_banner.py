"""The banner that says when this master may not command, on every page, and the dialogs that act on it."""

import pytest
from django.urls import reverse

from jobs.models import Operation
from jobs.pages.contexts import fencing as pages
from mirbad.kernel.conf import settings
from nodes import fencing
from nodes.models import MasterIdentity, Node
from nodes.pki import authority
from tests.pages import seed

pytestmark = [pytest.mark.app, pytest.mark.django_db]

PHRASE = "the previous master is stopped"
PAGES = ("home", "nodes:list", "models:list", "models:playground", "models:keys", "jobs:list", "audit:list")
HTMX = {"HX-Request": "true"}


@pytest.fixture
def master():
    authority.ensure()
    seed.node("atlas", "Atlas")


@pytest.fixture
def taken(master):
    MasterIdentity.objects.update(epoch=5, takeover_id="op-earlier")
    Node.objects.filter(pk="atlas").update(
        reachability="fenced", held_epoch=7, takeover_id="op-earlier", takeover_epoch=5
    )


def text(client, name, *args, **headers):
    response = client.get(reverse(name, args=args), headers=headers)
    assert response.status_code == 200
    return response.content.decode()


@pytest.mark.parametrize("name", PAGES)
def test_every_page_says_that_the_master_is_fenced(name, operator, viewer, master):
    assert "Take over" not in text(operator.client, name)
    fencing.fence("Node atlas obeys another master.")
    page = text(operator.client, name)
    assert "This master is fenced" in page
    assert "Node atlas obeys another master." in page
    assert "Take over…" in page
    seen = text(viewer.client, name)
    assert "This master is fenced" in seen
    assert "Take over…" not in seen


def test_a_node_under_another_master_is_offered_its_continuation(operator, taken):
    page = text(operator.client, "home")
    assert "Continue takeover for Atlas…" in page
    assert "epoch 7" in page
    assert "This master is fenced" not in page


def test_an_option_that_is_left_set_is_warned_of(operator, master, monkeypatch):
    chosen = settings().model_copy(update={"fencing_takeover": True})
    monkeypatch.setattr(pages, "settings", lambda: chosen)
    assert "takes over again at every start" in text(operator.client, "home")
    chosen = chosen.model_copy(update={"fencing_takeover_id": "once"})
    assert "is still set" in text(operator.client, "home")


def test_the_phrase_typed_in_the_dialog_takes_over(operator, master):
    fencing.fence("Node atlas obeys another master.")
    url = reverse("jobs:takeover")
    form = text(operator.client, "jobs:takeover", **HTMX)
    assert PHRASE in form
    assert "<html" not in form
    refused = operator.client.post(url, {"confirm": "yes"}, headers=HTMX)
    assert refused.status_code == 409
    assert "confirmation_required" in refused.content.decode()
    assert operator.client.post(url, {"confirm": PHRASE}, headers=HTMX).status_code == 204
    operation = Operation.objects.get(kind="takeover")
    page = text(operator.client, "home")
    assert "Takeover in progress" in page
    assert "Take over…" not in page
    assert "Read the nodes" in text(operator.client, "jobs:detail", operation.pk)


def test_an_owner_stands_down_from_the_banner_and_only_an_owner_takes_over_again(owner, operator, viewer, master):
    fencing.fence("Node atlas obeys another master.")
    assert "Stand down…" not in text(operator.client, "home")
    assert "Stand down…" in text(owner.client, "home")
    url = reverse("jobs:stand-down")
    form = text(owner.client, "jobs:stand-down", **HTMX)
    assert "this master stands down" in form
    assert "<html" not in form
    assert "<html" in text(owner.client, "jobs:stand-down")
    for person in (operator, viewer):
        assert person.client.get(url).status_code == 403
        assert person.client.post(url, {"confirm": "this master stands down"}).status_code == 403
    assert owner.client.post(url, {"confirm": "yes"}, headers=HTMX).status_code == 409
    assert owner.client.post(url, {"confirm": "this master stands down"}, headers=HTMX).status_code == 204
    page = text(operator.client, "home")
    assert "This master stands down: it cannot" in page
    assert "An owner can take over." in page
    assert "Take over…" not in page
    page = text(owner.client, "home")
    assert "Take over…" in page
    assert "Stand down…" not in page


def test_a_node_that_obeys_another_master_offers_the_stand_down_to_owners(owner, operator, taken):
    assert "Stand down…" in text(owner.client, "home")
    assert "Stand down…" not in text(operator.client, "home")


def test_without_scripts_the_dialog_is_a_page(operator, taken):
    assert "<html" in text(operator.client, "jobs:takeover")
    answer = operator.client.post(reverse("jobs:takeover"), {"confirm": PHRASE})
    assert answer["Location"] == reverse("jobs:detail", args=[Operation.objects.get(kind="takeover").pk])


def test_the_node_id_typed_in_the_dialog_continues(operator, taken):
    url = reverse("jobs:takeover-continue", args=["atlas"])
    assert "op-earlier" in text(operator.client, "jobs:takeover-continue", "atlas", **HTMX)
    asked = {"takeover_id": "op-earlier", "agent_epoch": "7", "confirm": "atlas"}
    for wrong in ({"confirm": "Atlas"}, {"agent_epoch": "nine"}, {"agent_epoch": "²"}, {"takeover_id": ""}):
        assert operator.client.post(url, {**asked, **wrong}, headers=HTMX).status_code == 409, wrong
    assert operator.client.post(url, asked, headers=HTMX).status_code == 204
    assert Operation.objects.get(kind="continuation").node_id_text == "atlas"


def test_a_node_that_waits_for_nothing_has_no_dialog(operator, master):
    assert operator.client.get(reverse("jobs:takeover-continue", args=["atlas"])).status_code == 404


@pytest.mark.parametrize(("name", "args"), [("jobs:takeover", []), ("jobs:takeover-continue", ["atlas"])])
def test_only_operators_act(name, args, viewer, stranger, anybody, taken):
    url = reverse(name, args=args)
    for person in (viewer, stranger):
        assert person.client.get(url).status_code == 403
        assert person.client.post(url, {"confirm": PHRASE}).status_code == 403
    assert anybody.post(url, {"confirm": PHRASE}).status_code == 302
    assert not Operation.objects.exists()


def test_the_banner_reads_itself_again_with_a_constant_cost(viewer, stranger, taken, django_assert_num_queries):
    url = reverse("jobs:fencing-banner")
    viewer.client.get(url, headers=HTMX)
    for number in range(6):
        seed.node(f"more-{number}", "", reachability="fenced", takeover_id="op-earlier", takeover_epoch=2)
    with django_assert_num_queries(6):
        page = viewer.client.get(url, headers=HTMX).content.decode()
    assert page.count("obeys another master") == 7
    assert "<html" not in page
    assert stranger.client.get(url, headers=HTMX).status_code == 403
