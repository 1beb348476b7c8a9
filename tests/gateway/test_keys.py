"""Keys of `/v1`: made once, shown once, ended for good."""

from datetime import UTC, datetime, timedelta

import pytest
from django.urls import reverse

from audit.models import AuditLine
from mirbad.kernel.actor import CONFIG, system
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound
from models_app import keys, routing
from models_app.models import ApiKey, ModelDefinition

pytestmark = [pytest.mark.app, pytest.mark.django_db]


def test_a_key_is_kept_as_a_digest_and_shown_once():
    key, secret = keys.create("  chat  ", actor=CONFIG)
    row = ApiKey.objects.get()
    assert secret.startswith("ssk_")
    assert len(secret) == 47
    assert row.digest == keys.digest(secret)
    assert row.prefix == secret[:12]
    assert row.name == "chat"
    assert secret not in str(ApiKey.objects.values())
    assert key.created_by == "config"


def test_each_write_is_audited_without_the_secret_and_seen_by_the_gateway():
    before = routing.version()
    key, secret = keys.create("chat", actor=CONFIG)
    keys.revoke(key.id, system("test"))
    assert routing.version() == before + 2
    lines = list(AuditLine.objects.order_by("id").values_list("action", "actor", "detail"))
    assert lines == [("api-key", "config", "created"), ("api-key", "system:test", "revoked")]
    assert secret[12:] not in str(list(AuditLine.objects.values()))


def test_revoking_twice_changes_nothing_and_an_unknown_key_is_told():
    key, _ = keys.create("chat", actor=CONFIG)
    first = keys.revoke(key.id, CONFIG).revoked_at
    assert keys.revoke(key.id, CONFIG).revoked_at == first
    assert AuditLine.objects.filter(detail="revoked").count() == 1
    with pytest.raises(NotFound):
        keys.revoke(key.id + 1, CONFIG)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": ""}, "name_invalid"),
        ({"name": "x" * 101}, "name_invalid"),
        ({"name": "a\nb"}, "name_invalid"),
        ({"allowed_models": ["nothing"]}, "model_unknown"),
        ({"limits": keys.Limits(requests_per_minute=0)}, "limit_invalid"),
        ({"limits": keys.Limits(tokens_per_minute=-1)}, "limit_invalid"),
        ({"limits": keys.Limits(max_parallel=True)}, "limit_invalid"),
        ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "expiry_invalid"),
        ({"expires_at": datetime(2999, 1, 1)}, "expiry_invalid"),  # noqa: DTZ001  no time zone is the case
    ],
)
def test_what_makes_no_sense_is_refused_with_its_reason(change, code):
    with pytest.raises(InvalidRequest) as refused:
        keys.create(**({"name": "chat", "actor": CONFIG} | change))
    assert [p["code"] for p in refused.value.problems] == [code]
    assert not ApiKey.objects.exists()


def test_allowed_models_and_expiry_are_kept():
    ModelDefinition.objects.create(id="m", runtime="sim", delivery="process")
    until = datetime.now(UTC) + timedelta(days=1)
    key, _ = keys.create("chat", actor=CONFIG, allowed_models=["m", "m"], expires_at=until)
    key.refresh_from_db()
    assert (key.allowed_models, key.expires_at) == (["m"], until)


def test_the_list_leaves_revoked_keys_out_unless_asked():
    key, _ = keys.create("old", actor=CONFIG)
    keys.create("new", actor=CONFIG)
    keys.revoke(key.id, CONFIG)
    assert [k.name for k in keys.listed()] == ["new"]
    assert {k.name for k in keys.listed(include_revoked=True)} == {"new", "old"}


def test_a_change_keeps_the_secret_and_reaches_the_gateway():
    key, _ = keys.create("chat", actor=CONFIG, limits=keys.Limits(max_parallel=3))
    before = routing.version()
    changed = keys.update(key.id, CONFIG, name="other", max_parallel=None, tokens_per_minute=500)
    assert (changed.name, changed.max_parallel, changed.tokens_per_minute) == ("other", None, 500)
    assert changed.digest == key.digest
    assert routing.version() == before + 1
    assert AuditLine.objects.order_by("id").last().detail == "changed max_parallel, name, tokens_per_minute"
    assert keys.update(key.id, CONFIG).name == "other"
    assert routing.version() == before + 1
    with pytest.raises(TypeError):
        keys.update(key.id, CONFIG, digest="x")


def test_a_rotated_key_has_a_new_secret_and_the_one_before_ends_with_its_grace():
    key, old = keys.create("chat", actor=CONFIG)
    fresh, new = keys.rotate(key.id, CONFIG, grace=timedelta(minutes=5))
    assert (fresh.digest, fresh.previous_digest) == (keys.digest(new), keys.digest(old))
    assert fresh.previous_until > datetime.now(UTC) + timedelta(minutes=4)
    gone, newest = keys.rotate(key.id, CONFIG)
    assert (gone.digest, gone.previous_digest, gone.previous_until) == (keys.digest(newest), "", None)
    for grace in (timedelta(seconds=-1), timedelta(days=8)):
        with pytest.raises(InvalidRequest):
            keys.rotate(key.id, CONFIG, grace=grace)


def test_a_revoked_key_is_neither_changed_nor_rotated():
    key, _ = keys.create("chat", actor=CONFIG)
    keys.revoke(key.id, CONFIG)
    with pytest.raises(Conflict):
        keys.update(key.id, CONFIG, name="x")
    with pytest.raises(Conflict):
        keys.rotate(key.id, CONFIG)
    with pytest.raises(NotFound):
        keys.update(key.id + 1, CONFIG, name="x")


def test_the_api_makes_changes_rotates_and_ends_keys(operator):
    client = operator.client

    def send(method, name, body=None, **args):
        return getattr(client, method)(reverse(name, kwargs=args), body, content_type="application/json")

    made = send("post", "api-keys", {"name": "chat", "requestsPerMinute": 60, "maxParallel": 4}).json()
    assert (made["requestsPerMinute"], made["tokensPerMinute"], made["maxParallel"]) == (60, None, 4)
    assert made["secret"].startswith("ssk_")
    one = {"row_id": made["id"]}
    changed = send("patch", "api-key", {"tokensPerMinute": 1000, "maxParallel": None}, **one).json()
    assert (changed["requestsPerMinute"], changed["tokensPerMinute"], changed["maxParallel"]) == (60, 1000, None)
    assert "secret" not in changed
    assert send("patch", "api-key", {"requestsPerMinute": 0}, **one).status_code == 400
    assert send("patch", "api-key", {"digest": "x"}, **one).status_code == 400
    rotated = send("post", "api-key-rotate", {"graceSeconds": 60}, **one).json()
    assert rotated["secret"] != made["secret"]
    assert rotated["previousUntil"]
    assert send("get", "api-key", **one).json()["prefix"] == rotated["secret"][:12]
    assert send("delete", "api-key", **one).status_code == 204
    assert send("patch", "api-key", {"name": "x"}, **one).status_code == 409


def test_pages_change_and_rotate_keys(operator):
    key, secret = keys.create("chat", actor=CONFIG, limits=keys.Limits(max_parallel=3))
    client = operator.client
    page = client.get(reverse("models:key-edit", args=[key.id])).content.decode()
    assert 'value="3"' in page
    sent = {"name": "chat", "max_parallel": "5", "requests_per_minute": "", "tokens_per_minute": ""}
    assert client.post(reverse("models:key-edit", args=[key.id]), sent).status_code == 302
    key.refresh_from_db()
    assert key.max_parallel == 5
    shown = client.post(reverse("models:key-rotate", args=[key.id]))
    key.refresh_from_db()
    assert shown["Cache-Control"] == "no-store"
    assert key.prefix in shown.content.decode()
    assert key.previous_digest == keys.digest(secret)
    assert b"5 concurrent" in client.get(reverse("models:keys")).content
