"""Tokens: shown once, kept as a digest, bound to node and purpose, gone in time."""

import subprocess
from datetime import timedelta

import pytest
import time_machine

from audit.models import AuditLine
from mirbad.kernel import clock
from mirbad.kernel.actor import CONFIG
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Conflict, InvalidRequest, NotFound
from nodes import fencing, registry
from nodes.enrollment import join_command, tokens
from nodes.errors import MasterFenced, NodeRevoked
from nodes.models import JoinToken, Node, NodePin, TokenAttempt
from tests.nodes.parts import OPERATOR, PEER, approved, enrolled, open_tokens

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("master")]


def test_a_join_command_holds_everything_but_the_token():
    made = tokens.create("pc-1", actor=OPERATOR, display_name=" Kitchen ", ttl=timedelta(minutes=10))
    command = made.commands["linux"]
    assert made.purpose == "join"
    assert f"--ca-hash {made.ca_hash}" in command
    assert f"--enroll-url {made.enroll_url}" in command
    assert "--node-id pc-1" in command
    assert made.token not in command
    assert made.token not in repr(made)
    assert abs(made.expires_at - clock.now() - timedelta(minutes=10)) < timedelta(seconds=5)


def test_only_a_digest_of_the_secret_is_kept():
    made = tokens.create("pc-1", actor=OPERATOR)
    token_id, secret = made.token.split(".")
    row = JoinToken.objects.get(pk=token_id)
    assert len(secret) == 43
    assert secret not in str(vars(row))
    assert row.digest == tokens.digest_of(secret)


@pytest.mark.parametrize("node_id", ["", "Pc", "-pc", "a" * 41, "join-tokens", "a_b", "pc/1", "é"])
def test_a_node_id_that_breaks_the_rules_is_refused(node_id):
    with pytest.raises(InvalidRequest) as caught:
        tokens.create(node_id, actor=OPERATOR)
    assert caught.value.problems[0]["field"] == "nodeId"


@pytest.mark.parametrize("minutes", [9, 24 * 60 + 1, 0, -5])
def test_a_lifetime_outside_ten_minutes_to_a_day_is_refused(minutes):
    with pytest.raises(InvalidRequest, match="10 minutes"):
        tokens.create("pc-1", actor=OPERATOR, ttl=timedelta(minutes=minutes))


def test_a_display_name_that_is_too_long_or_cannot_be_printed_is_refused():
    for name in ("x" * 101, "a\x00b", "a\nb"):
        with pytest.raises(InvalidRequest):
            tokens.create("pc-1", actor=OPERATOR, display_name=name)


def test_a_name_in_use_gets_no_join_token():
    approved("pc-1")
    enrolled("pc-2")
    registry.revoke(approved("pc-3").node_id, OPERATOR)
    with pytest.raises(Conflict, match="rekey"):
        tokens.create("pc-1", actor=OPERATOR)
    with pytest.raises(Conflict, match="waits for approval"):
        tokens.create("pc-2", actor=OPERATOR)
    with pytest.raises(NodeRevoked):
        tokens.create("pc-3", actor=OPERATOR)


def test_a_rekey_token_needs_a_node_with_a_key():
    machine = approved("pc-1")
    enrolled("pc-2")
    with pytest.raises(NotFound):
        tokens.create("pc-9", actor=OPERATOR, purpose="rekey")
    command = tokens.create("pc-1", actor=OPERATOR, purpose="rekey").commands["linux"]
    assert f"--rekey --node-uid {machine.node.uid}" in command
    assert tokens.create("pc-2", actor=OPERATOR, purpose="rekey").purpose == "rekey"
    registry.revoke("pc-1", OPERATOR)
    with pytest.raises(NodeRevoked):
        tokens.create("pc-1", actor=OPERATOR, purpose="rekey")


def test_only_the_master_itself_makes_a_bootstrap_token_and_for_its_own_node():
    with pytest.raises(InvalidRequest):
        tokens.create("local", actor=OPERATOR, purpose="bootstrap")
    with pytest.raises(InvalidRequest):
        tokens.create("pc-1", actor=CONFIG, purpose="bootstrap")
    with pytest.raises(InvalidRequest):
        tokens.create("pc-1", actor=CONFIG, purpose="anything")
    assert tokens.create("local", actor=CONFIG, purpose="bootstrap").purpose == "bootstrap"


def test_a_fenced_master_makes_no_token():
    fencing.fence("Another master commands.")
    with pytest.raises(MasterFenced, match="Another master"):
        tokens.create("pc-1", actor=OPERATOR)


def test_withdrawing_expires_what_is_unused_and_says_how_many():
    first = tokens.create("pc-1", actor=OPERATOR)
    tokens.create("pc-1", actor=OPERATOR)
    other = tokens.create("pc-2", actor=OPERATOR)
    assert tokens.withdraw("pc-1", OPERATOR) == 2
    assert tokens.withdraw("pc-1", OPERATOR) == 0
    assert JoinToken.objects.get(pk=first.token.split(".")[0]).expires_at <= clock.now()
    assert [row.pk for row in open_tokens("pc-2")] == [other.token.split(".")[0]]


def test_old_tokens_and_attempts_are_pruned_when_one_is_made():
    old = tokens.create("pc-1", actor=OPERATOR)
    tokens.count_wrong(old.token.split(".")[0], PEER)
    recent = tokens.create("pc-2", actor=OPERATOR, ttl=timedelta(hours=24))
    TokenAttempt.objects.update(last_at=clock.now() - timedelta(hours=25))
    kept = settings().join_token_retention
    JoinToken.objects.filter(pk=old.token.split(".")[0]).update(expires_at=clock.now() - kept - timedelta(minutes=1))
    tokens.create("pc-3", actor=OPERATOR)
    assert set(JoinToken.objects.values_list("node_id_text", flat=True)) == {"pc-2", "pc-3"}
    assert not TokenAttempt.objects.exists()
    assert recent.purpose == "join"


def test_the_answer_of_a_spent_token_is_for_the_key_that_the_node_still_has():
    machine = enrolled("pc-1")
    token_id = machine.token.split(".")[0]
    row = JoinToken.objects.get(pk=token_id)
    assert tokens.stored_answer(row, row.used_by_spki) == machine.answer
    node = Node.objects.create(pk="pc-2", address="192.0.2.9")
    NodePin.objects.filter(node_id="pc-1").update(node=node)
    with pytest.raises(tokens.JoinRejected, match=r"^the token was used before, and its key is no longer valid$"):
        tokens.stored_answer(row, row.used_by_spki)


def test_a_rekey_token_needs_a_key_that_is_in_use():
    machine = approved("pc-1")
    machine.node.pins.update(slot=NodePin.NEXT)
    with pytest.raises(Conflict, match="Node pc-1 has no key to replace"):
        tokens.create("pc-1", actor=OPERATOR, purpose="rekey")


def test_a_refusal_names_the_node():
    registry.revoke(approved("pc-3").node_id, OPERATOR)
    with pytest.raises(NodeRevoked, match="Node pc-3 is revoked"):
        tokens.create("pc-3", actor=OPERATOR)


def test_attempts_of_today_are_kept():
    tokens.count_wrong("0" * 16, PEER)
    tokens.create("pc-1", actor=OPERATOR)
    assert TokenAttempt.objects.count() == 1


def test_the_audit_line_names_how_long_a_token_is_valid():
    tokens.create("pc-1", actor=OPERATOR, ttl=timedelta(minutes=90, seconds=59))
    assert AuditLine.objects.get(action="node.join-token").detail == "valid for 90 min"


def test_a_retention_of_zero_keeps_tokens_for_ever(monkeypatch):
    made = tokens.create("pc-1", actor=OPERATOR)
    monkeypatch.setattr(
        tokens, "settings", lambda: settings().model_copy(update={"join_token_retention": timedelta(0)})
    )
    with time_machine.travel(clock.now() + timedelta(days=4000)):
        tokens.create("pc-2", actor=OPERATOR)
    assert JoinToken.objects.filter(pk=made.token.split(".")[0]).exists()


def test_making_and_withdrawing_are_audited_without_the_token():
    made = tokens.create("pc-1", actor=OPERATOR)
    tokens.withdraw("pc-1", OPERATOR)
    lines = list(AuditLine.objects.filter(action="node.join-token").order_by("id"))
    assert [(line.actor, line.target) for line in lines] == [(OPERATOR.name, "join"), (OPERATOR.name, "withdraw")]
    assert made.token.split(".")[1] not in str([vars(line) for line in lines])


@pytest.mark.parametrize(
    ("browser", "enroll", "bundles"),
    [
        ("", "https://master.lan:8443", "http://master.lan:8080"),
        ("http://master.lan", "https://master.lan:8443", "http://master.lan"),
        ("http://MASTER.lan:8080", "https://master.lan:8443", "http://master.lan:8080"),
        ("https://master.lan", "https://master.lan:8443", "https://master.lan"),
        ("https://master.lan:8444", "https://master.lan:8443", "https://master.lan:8444"),
        ("http://192.0.2.7:8080", "https://192.0.2.7:8443", "http://192.0.2.7:8080"),
        ("http://127.0.0.1:8080", "https://127.0.0.1:8443", "http://127.0.0.1:8080"),
        ("http://[::1]:8080", "https://[::1]:8443", "http://[::1]:8080"),
        ("https://[2001:0db8:0::1]:8444", "https://[2001:db8::1]:8443", "https://[2001:db8::1]:8444"),
        ("http://a.below.lan:81", "https://a.below.lan:8443", "http://a.below.lan:81"),
        ("https://evil.example:8444", "https://master.lan:8443", "http://master.lan:8080"),
        ("2001:db8::1", "https://[2001:db8::1]:8443", None),
        ("master.lan", "https://master.lan:8443", None),
    ],
)
def test_the_urls_of_a_join_are_those_of_the_browser_if_listed(monkeypatch, browser, enroll, bundles):
    listed = settings().model_copy(update={"hosts": ("master.lan", "192.0.2.7", "[2001:db8::1]", ".below.lan")})
    monkeypatch.setattr(join_command, "settings", lambda: listed)
    assert join_command.enroll_url_for(browser) == enroll
    if bundles is not None:
        assert join_command.bundle_url_for(enroll, browser) == bundles


@pytest.mark.parametrize(
    ("bind", "browser", "enroll", "bundles"),
    [
        ("192.0.2.7", "", "https://192.0.2.7:8443", "http://192.0.2.7:8080"),
        ("192.0.2.7", "http://192.0.2.7:8080", "https://192.0.2.7:8443", "http://192.0.2.7:8080"),
        ("2001:db8::7", "", "https://[2001:db8::7]:8443", "http://[2001:db8::7]:8080"),
        ("2001:db8::7", "http://[2001:0DB8::7]:8080", "https://[2001:db8::7]:8443", "http://[2001:db8::7]:8080"),
        ("::1", "", "https://[::1]:8443", "http://[::1]:8080"),
        ("master.lan", "http://master.lan:8080", "https://master.lan:8443", "http://master.lan:8080"),
        ("::", "", "https://127.0.0.1:8443", "http://127.0.0.1:8080"),
        ("::", "http://[::1]:8080", "https://[::1]:8443", "http://[::1]:8080"),
    ],
)
def test_without_listed_names_the_urls_of_a_join_are_those_of_the_address_that_is_listened_on(
    monkeypatch, bind, browser, enroll, bundles
):
    bound = settings().model_copy(update={"bind": bind, "hosts": ()})
    monkeypatch.setattr(join_command, "settings", lambda: bound)
    assert join_command.enroll_url_for(browser) == enroll
    assert join_command.bundle_url_for(enroll, browser) == bundles


def test_the_command_of_a_page_behind_tls_downloads_over_tls_from_the_same_port(operator, monkeypatch, settings):
    settings.ALLOWED_HOSTS = ["m.example"]
    listed = join_command.settings().model_copy(update={"hosts": ("m.example",)})
    monkeypatch.setattr(join_command, "settings", lambda: listed)
    head = {"Host": "m.example:8444", "Origin": "https://m.example:8444"}
    form = {"node_id": "pc-1", "display_name": "", "ttl_minutes": "60"}
    page = operator.client.post("/nodes/-/add", form, headers=head, secure=True).content.decode()
    answer = operator.client.post(
        "/api/nodes/join-tokens", {"nodeId": "pc-2"}, content_type="application/json", headers=head, secure=True
    ).json()
    for text in (page, answer["commands"]["linux"], answer["agentDownload"]["bundles"][0]["url"]):
        assert "https://m.example:8444/agent/bundles/" in text
    assert answer["enrollUrl"] == "https://m.example:8443"


def test_a_browser_on_the_master_itself_leaves_the_configured_name_to_other_machines(monkeypatch):
    listed = settings().model_copy(update={"enroll_url": "https://door.example:9999"})
    monkeypatch.setattr(join_command, "settings", lambda: listed)
    here = "http://127.0.0.1:8080"
    assert join_command.bundle_url_for(join_command.enroll_url_for(here), here) == "http://door.example:8080"


def test_an_enroll_url_that_is_set_wins(monkeypatch):
    listed = settings().model_copy(update={"enroll_url": "https://door.example:9999/"})
    monkeypatch.setattr(join_command, "settings", lambda: listed)
    assert join_command.enroll_url_for("127.0.0.1") == "https://door.example:9999"


def test_a_command_with_the_token_inside_hands_it_over_by_environment_alone():
    made = tokens.create("pc-1", actor=OPERATOR)
    assert made.token not in made.commands["linux"]
    line = made.linux_with_token.replace("set -e;", 'echo "token: $MIRBAD_JOIN_TOKEN"; exit 0;', 1)
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == f"token: {made.token}\n"
    assert "sudo --preserve-env=MIRBAD_JOIN_TOKEN" in made.linux_with_token
    assert made.linux_with_token.count(made.token) == 1
