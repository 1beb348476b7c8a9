"""Keys of `/v1`: made once, shown once, ended for good."""

from datetime import UTC, datetime, timedelta

import pytest

from audit.models import AuditLine
from mirbad.kernel.actor import CONFIG, system
from mirbad.kernel.errors import InvalidRequest, NotFound
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
