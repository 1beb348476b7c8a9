"""A NUL character in an address, a query, a form or a body: 400 or 404 at most, with either database."""

import json

import pytest
from django.urls import reverse

from tests.pages import seed

pytestmark = [pytest.mark.app, pytest.mark.django_db]

PAGES = [
    *("/audit?node=%00", "/audit?model=%00", "/audit?action=%00", "/audit?result=a%00b", "/operations?node=%00"),
    *("/operations?model=%00", "/operations?kind=%00", "/models/a%00b", "/operations/a%00b", "/usage?key=%00"),
    *("/playground?model=%00", "/downloads?node=%00", "/models/new?node=%00", "/nodes/atlas/%00"),
    *("/operations/-/of-model/%00", "/operations/-/timeline/%00", "/models/a%00b/move", "/models/qwen3-14b?node=%00"),
    *("/api/audit?nodeId=%00", "/api/operations?nodeId=%00", "/api/models/a%00b", "/api/operations/%00"),
]
FORMS = [
    ("login", [], {"username": "a\0b", "password": "x\0y"}),
    ("jobs:node-image-pull", ["atlas"], {"image": "a\0b"}),
    ("jobs:model-move", ["qwen3-14b"], {"node": "a\0b", "mode": "auto"}),
    ("jobs:model-move", ["qwen3-14b"], {"node": "atlas", "mode": "a\0b", "source": "\0"}),
    ("jobs:takeover-continue", ["atlas"], {"takeover_id": "\0", "agent_epoch": "1", "confirm": "atlas"}),
    ("nodes:witnesses-accept", [], {"reason": "a\0b", "confirm": "this audit log counts"}),
    ("nodes:add", [], {"node_id": "a\0b", "display_name": "\0"}),
    ("models:key-new", [], {"name": "a\0b"}),
    ("nodes:save", ["atlas"], {"display_name": "a\0b"}),
    ("nodes:approve", ["atlas"], {"expected_spki": "a\0b"}),
    ("accounts:token-new", [], {"name": "a\0b", "role": "viewer"}),
]
BODIES = [
    ("/api/audit/witnesses/accept", {"reason": "a\0b", "confirm": "this audit log counts", "nodeIds": ["\0"]}),
    ("/api/keys", {"name": "a\0b", "allowedModels": ["\0"]}),
    ("/api/nodes/join-tokens", {"nodeId": "a\0b"}),
    ("/api/fencing/takeover/continue", {"nodeId": "\0", "agentEpoch": 1, "confirm": "\0"}),
    ("/api/downloads", {"nodeId": "\0", "repository": "a/b\0"}),
]


@pytest.fixture
def fleet(db):
    seed.fleet()


@pytest.mark.parametrize("path", PAGES)
def test_in_an_address(fleet, owner, path):
    assert owner.client.get(path).status_code < 500


@pytest.mark.parametrize(("name", "args", "sent"), FORMS)
def test_in_a_form(fleet, owner, anybody, name, args, sent):
    client = anybody if name == "login" else owner.client
    answer = client.post(reverse(name, args=args), sent, headers={"HX-Request": "true"})
    assert answer.status_code < 500, answer.content


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_in_a_body(fleet, owner, path, body):
    answer = owner.client.post(path, json.dumps(body), content_type="application/json")
    assert 400 <= answer.status_code < 500, answer.content
