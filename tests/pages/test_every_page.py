"""Every page opens for who may look, and for nobody else."""

import pytest
from django.urls import reverse

from jobs.models import Operation
from tests.pages import seed

pytestmark = pytest.mark.app

PAGES = (
    ("home", []),
    ("dashboard", []),
    ("nodes:list", []),
    ("nodes:tab", ["atlas", "gpus"]),
    ("nodes:tab", ["local", "gpus"]),
    ("nodes:history", ["atlas"]),
    ("nodes:detail", ["atlas"]),
    ("nodes:detail", ["local"]),
    ("nodes:detail", ["dune"]),
    ("nodes:detail", ["borealis"]),
    ("nodes:tab", ["atlas", "models"]),
    ("nodes:tab", ["atlas", "operations"]),
    ("nodes:tab", ["atlas", "certificates"]),
    ("nodes:tab", ["atlas", "settings"]),
    ("nodes:tab", ["atlas", "commands"]),
    ("models:list", []),
    ("models:detail", ["qwen3-14b"]),
    ("models:detail", ["phi-4"]),
    ("models:detail", ["draft-idea"]),
    ("models:playground", []),
    ("models:keys", []),
    ("models:usage", []),
    ("models:of-node", ["atlas"]),
    ("models:node-cells", []),
    ("jobs:of-node", ["atlas"]),
    ("jobs:node-cells", []),
    ("jobs:node-history", ["atlas"]),
    ("jobs:activity", []),
    ("jobs:list", []),
    ("jobs:downloads", []),
    ("models:folders", []),
    ("models:catalog", []),
    ("jobs:of-model", ["qwen3-coder"]),
    ("jobs:timeline", ["qwen3-coder"]),
    ("jobs:ca", []),
    ("audit:list", []),
)
FOR_OPERATORS = (
    ("nodes:add", []),
    ("jobs:download-new", []),
    ("nodes:rekey", ["atlas"]),
    ("nodes:rekey", ["dune"]),
    ("jobs:node-revoke", ["atlas"]),
    ("jobs:node-drain", ["atlas"]),
    ("jobs:node-drain", ["local"]),
    ("jobs:model-move", ["qwen3-14b"]),
    ("jobs:model-move", ["draft-idea"]),
    ("jobs:model-unplace", ["qwen3-14b"]),
    ("jobs:model-unplace", ["draft-idea"]),
    ("models:new", []),
    ("models:edit", ["qwen3-coder"]),
    ("models:node-fields", []),
    ("models:key-new", []),
)

FOR_OWNERS = (
    ("jobs:backups", []),
    ("jobs:backup-new", []),
    ("jobs:backup-destination-new", ["folder"]),
    ("jobs:backup-destination-new", ["smb"]),
    ("jobs:backup-destination-new", ["nfs"]),
    ("jobs:backup-destination-new", ["s3"]),
)


@pytest.fixture
def fleet(db):
    seed.fleet()


@pytest.mark.parametrize(("name", "args"), PAGES)
def test_a_viewer_may_look_at_a_page_and_its_fragment(fleet, viewer, name, args):
    url = reverse(name, args=args)
    page = viewer.client.get(url)
    assert page.status_code == 200
    fragment = viewer.client.get(url, headers={"HX-Request": "true"})
    assert fragment.status_code == 200
    assert b"<html" not in fragment.content


@pytest.mark.parametrize(("name", "args"), PAGES + FOR_OPERATORS + FOR_OWNERS)
def test_strangers_are_kept_out(fleet, anybody, stranger, name, args):
    url = reverse(name, args=args)
    door = anybody.get(url)
    assert door.status_code == 302
    assert door["Location"].startswith("/login?next=")
    assert stranger.client.get(url).status_code == 403
    fragment = anybody.get(url, headers={"HX-Request": "true"})
    assert fragment.status_code == 401
    assert fragment["HX-Redirect"] == "/login"


@pytest.mark.parametrize(("name", "args"), FOR_OPERATORS)
def test_pages_that_write_are_for_operators(fleet, viewer, operator, name, args):
    url = reverse(name, args=args)
    assert viewer.client.get(url).status_code == 403
    assert operator.client.get(url).status_code == 200


@pytest.mark.parametrize(("name", "args"), FOR_OWNERS)
def test_pages_of_backups_are_for_owners(fleet, people, name, args):
    answers = {who: person.client.get(reverse(name, args=args)).status_code for who, person in people.items()}
    assert answers == {"owner": 200, "operator": 403, "viewer": 403, "stranger": 403}


def test_an_operation_has_a_page(fleet, viewer):
    operations = list(Operation.objects.all())
    assert len({operation.kind for operation in operations}) > 1
    for operation in operations:
        assert viewer.client.get(reverse("jobs:detail", args=[operation.pk])).status_code == 200


@pytest.mark.parametrize("url", ["/nodes/nobody", "/models/nothing", "/operations/op-0", "/nodes/atlas/nonsense"])
def test_what_is_not_there_is_not_found(fleet, viewer, url):
    answer = viewer.client.get(url)
    assert answer.status_code == 404
    assert b"Page not found" in answer.content


def test_pages_on_an_empty_master_say_what_to_do(operator):
    for name, words in (
        ("home", "No nodes have joined yet"),
        ("nodes:list", "Add a machine"),
        ("models:list", "No models yet"),
        ("models:keys", "No API keys"),
        ("jobs:list", "No operations yet"),
        ("audit:list", "No audit lines yet"),
        ("models:playground", "No models yet"),
    ):
        assert words in operator.client.get(reverse(name)).content.decode()
