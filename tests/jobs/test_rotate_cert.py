"""A node's key is changed against the real agent; workers and agents are killed between any two steps."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from agent.common import keys
from audit.models import AuditLine
from jobs import ledger, worker
from jobs.kinds import rotate_cert
from jobs.loops.renew import renew_once
from jobs.models import Operation
from jobs.requests import cancellation, identity
from jobs.steps import keychange
from mirbad.kernel import clock
from mirbad.kernel.conf import settings
from mirbad.kernel.errors import Conflict
from nodes import reachability, registry
from nodes.enrollment import join, tokens
from nodes.errors import NodeOffline, NodeRevoked
from nodes.link import health
from nodes.models import Node, NodeCondition, NodePin, RevokedKey
from nodes.pki import authority
from tests.jobs.real import RealAgent
from tests.models_app.things import PERSON
from tests.nodes.parts import local_machine, pin_of, request_for
from tests.waiting import pause, until

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]


class Killed(BaseException):
    """The worker's process is gone."""


@pytest.fixture(autouse=True)
def _no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotate_cert, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(rotate_cert, "_AWAY_SECONDS", 0.1)


@pytest.fixture
def agent(transactional_db, tmp_path) -> Iterator[RealAgent]:
    authority.ensure()
    made = RealAgent(tmp_path).begin()
    made.connect()
    yield made
    made.clear()


def run(operation: Operation, seconds: float = 30) -> Operation:
    def over() -> bool:
        worker.run(operation.pk)
        operation.refresh_from_db()
        return operation.finished_at is not None

    until(over, f"{operation.kind} to end: {operation.stage} {operation.progress} {operation.error}", seconds)
    return operation


def assert_one_key(agent: RealAgent) -> str:
    """Master and agent know the same key and no other."""
    health.probe("local")
    spki = agent.store.load().spki
    assert (pin_of("local"), pin_of("local", NodePin.NEXT)) == (spki, None)
    assert agent.store.load_next() is None
    return spki


def test_a_node_serves_with_another_key_after_a_rotation(agent) -> None:
    before = assert_one_key(agent)
    done = run(identity.rotate("local", PERSON))
    assert (done.outcome, done.error) == ("succeeded", {})
    after = assert_one_key(agent)
    assert after == done.result["spkiSha256"] != before
    stages = list(done.events.values_list("stage", flat=True))
    assert stages == ["requesting", "settling", "installing", "verifying", "done"]
    lines = AuditLine.objects.filter(action="node.rotate-cert").order_by("id")
    assert [line.result for line in lines] == ["accepted", "succeeded"]
    assert Node.objects.get().cert_not_after == NodePin.objects.get().cert_not_after


def test_a_second_request_is_the_same_rotation(agent) -> None:
    first = identity.rotate("local", PERSON)
    assert identity.rotate("local", PERSON).pk == first.pk
    with pytest.raises(Conflict):
        identity.readmit("local", PERSON)
    run(first)


BOUNDARIES = ("claim", "_update", "request_csr", "install", "look")


@pytest.mark.faults
@pytest.mark.parametrize("name", BOUNDARIES)
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_worker_killed_at_any_boundary_locks_no_node_out(agent, monkeypatch, name: str, side: str) -> None:
    place: Any = ledger if name in ("claim", "_update") else keychange
    original = getattr(place, name)
    for turn in range(1, 5 if place is ledger else 2):
        crossed = 0

        def trapped(*args: Any, turn: int = turn, **kwargs: Any) -> Any:
            nonlocal crossed
            crossed += 1
            if side == "before" and crossed == turn:
                raise Killed
            answer = original(*args, **kwargs)
            if side == "after" and crossed == turn:
                raise Killed
            return answer

        operation = identity.rotate("local", PERSON)
        monkeypatch.setattr(place, name, trapped)
        with pytest.raises(Killed):
            run(operation)
        monkeypatch.setattr(place, name, original)
        health.probe("local")  # whatever key the node has, the master knows it
        _let_lease_end(operation)
        assert run(operation).outcome == "succeeded"
        assert_one_key(agent)


def _let_lease_end(operation: Operation) -> None:
    Operation.objects.filter(pk=operation.pk).update(lease_expires_at=clock.now(), next_run_at=clock.now())


@pytest.mark.faults
@pytest.mark.parametrize("stage", ["requesting", "settling", "installing", "verifying"])
def test_an_agent_killed_at_any_stage_comes_back_with_a_key_that_is_known(agent, stage: str) -> None:
    operation = identity.rotate("local", PERSON)
    while Operation.objects.get(pk=operation.pk).stage != stage:
        worker.run_step(operation.pk)
    agent.end()
    worker.run_step(operation.pk)
    agent.begin()
    agent.connect()
    _let_lease_end(operation)
    assert run(operation).outcome == "succeeded"
    assert_one_key(agent)


def test_a_rotation_that_is_given_up_leaves_the_former_key(agent) -> None:
    before = assert_one_key(agent)
    operation = identity.rotate("local", PERSON)
    for _ in range(2):
        worker.run_step(operation.pk)
    assert pin_of("local", NodePin.NEXT) is not None
    cancellation.request(operation.pk, PERSON)
    assert run(operation).outcome == "cancelled"
    assert assert_one_key(agent) == before


def test_giving_up_too_late_keeps_the_new_key(agent) -> None:
    operation = identity.rotate("local", PERSON)
    while Operation.objects.get(pk=operation.pk).stage != "verifying":
        worker.run_step(operation.pk)
    Operation.objects.filter(pk=operation.pk).update(stage="aborting")
    assert run(operation).outcome == "succeeded"
    assert_one_key(agent)


def test_a_node_that_lost_the_key_in_the_middle_is_asked_again(agent) -> None:
    operation = identity.rotate("local", PERSON)
    while Operation.objects.get(pk=operation.pk).stage != "installing":
        worker.run_step(operation.pk)
    (agent.config.state_dir / "identity" / "rotation-key.json").unlink()
    assert run(operation).outcome == "succeeded"
    assert_one_key(agent)


def test_an_old_agent_is_told_to_be_upgraded(agent) -> None:
    Node.objects.update(capabilities={**Node.objects.get().capabilities, "features": []})
    failed = run(identity.rotate("local", PERSON))
    assert (failed.outcome, failed.error["code"]) == ("failed", "node_incompatible")
    assert_one_key(agent)


def test_only_a_node_that_serves_is_rotated(agent) -> None:
    Node.objects.update(reachability="offline")
    with pytest.raises(NodeOffline):
        identity.rotate("local", PERSON)
    assert Operation.objects.count() == 0
    assert [line.error_code for line in AuditLine.objects.filter(action="node.rotate-cert")] == ["node_offline"]


def test_a_rekey_in_the_middle_ends_the_rotation_and_its_key_stands(agent) -> None:
    operation = identity.rotate("local", PERSON)
    while Operation.objects.get(pk=operation.pk).stage != "installing":
        worker.run_step(operation.pk)
    made = tokens.create("local", actor=PERSON, purpose="rekey")
    key = keys.new_key()
    request = request_for(made.token, "local", key, node_uid=str(Node.objects.get().uid))
    join.enroll(request, "127.0.0.1", rekey=True)
    ended = run(operation)
    assert (ended.outcome, pin_of("local")) == ("cancelled", keys.spki_of(key.public_key()))
    assert NodePin.objects.count() == 1


def test_a_revoke_in_the_middle_ends_the_rotation_and_both_keys(agent) -> None:
    operation = identity.rotate("local", PERSON)
    while Operation.objects.get(pk=operation.pk).stage != "installing":
        worker.run_step(operation.pk)
    pins = set(NodePin.objects.values_list("spki_sha256", flat=True))
    revoked = run(identity.revoke("local", "local", PERSON))
    operation.refresh_from_db()
    assert (revoked.outcome, operation.outcome, operation.error["code"]) == ("succeeded", "cancelled", "superseded")
    assert set(RevokedKey.objects.values_list("spki_sha256", flat=True)) == pins
    assert len(pins) == 2
    with pytest.raises(NodeRevoked):
        identity.rotate("local", PERSON)


# --- expired ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def short_life(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Certificates live for so many seconds from now on."""

    def set_life(seconds: float) -> None:
        fresh = settings().model_copy(update={"agent_certificate_life": timedelta(seconds=seconds)})
        for module in ("nodes.enrollment.join", "nodes.pki.renewal", "nodes.conditions"):
            monkeypatch.setattr(f"{module}.settings", lambda: fresh)

    return set_life


def test_a_node_whose_certificate_expired_comes_back_once_it_is_allowed(transactional_db, tmp_path, short_life) -> None:
    authority.ensure()
    short_life(2.0)
    agent = RealAgent(tmp_path).begin()
    try:
        agent.connect()
        until(lambda: agent.store.load().has_expired, "the certificate to expire", 5)
        pause(1)  # an open line outlives the certificate for as long as it is kept
        with pytest.raises(NodeOffline, match="expired"):
            health.probe("local")
        Node.objects.update(reachability="offline")
        with pytest.raises(NodeOffline):
            identity.rotate("local", PERSON)
        short_life(3600)
        operation = identity.readmit("local", PERSON)
        assert identity.readmit("local", PERSON).pk == operation.pk
        assert run(operation).outcome == "succeeded", operation.error
        assert_one_key(agent)
        with pytest.raises(Conflict, match="has not expired"):
            identity.readmit("local", PERSON)
    finally:
        agent.clear()


def test_another_key_does_not_come_back_by_an_expired_certificate(transactional_db, tmp_path, short_life) -> None:
    """The time is left out, the key is not: who lost the key gets nothing by the allowance."""
    authority.ensure()
    short_life(2.0)
    agent = RealAgent(tmp_path).begin()
    try:
        agent.connect()
        until(lambda: agent.store.load().has_expired, "the certificate to expire", 5)
        NodePin.objects.update(spki_sha256="0" * 64)
        operation = identity.readmit("local", PERSON)
        for _ in range(3):
            worker.run_step(operation.pk)
            _let_lease_end(operation)
        operation.refresh_from_db()
        assert (operation.stage, operation.outcome) == ("requesting", "open")
        assert "pinned" in operation.progress["text"]
        cancellation.request(operation.pk, PERSON)
    finally:
        agent.clear()


def test_an_allowance_that_nobody_used_ends(agent, monkeypatch) -> None:
    NodePin.objects.update(cert_not_after=clock.now() - timedelta(days=1))
    operation = identity.readmit("local", PERSON)
    agent.end()
    Operation.objects.filter(pk=operation.pk).update(created_at=clock.now() - timedelta(days=2))
    assert run(operation).outcome == "cancelled"


# --- renewal by itself -----------------------------------------------------------------------------------------------


def test_a_certificate_is_renewed_at_two_thirds_of_its_life(transactional_db, tmp_path, short_life) -> None:
    authority.ensure()
    short_life(6.0)
    agent = RealAgent(tmp_path).begin()
    agent.connect()
    try:
        before = pin_of("local")
        assert renew_once() == 0
        until(renew_once, "the renewal to be due", 6)
        assert renew_once() == 0  # under way
        operation = Operation.objects.get()
        assert (operation.actor, run(operation).outcome) == ("system:pki", "succeeded")
        assert pin_of("local") != before
    finally:
        agent.clear()


def test_a_renewal_that_failed_is_tried_again_after_a_pause(agent, monkeypatch) -> None:
    pin = NodePin.objects.get()
    monkeypatch.setattr("nodes.pki.renewal.renewal_at", lambda pin: pin.created_at)
    NodePin.objects.update(cert_not_after=clock.now() + timedelta(days=20))
    assert renew_once() == 1
    operation = Operation.objects.get()
    Operation.objects.update(finished_at=clock.now(), outcome="failed")
    assert renew_once() == 0
    Operation.objects.update(finished_at=clock.now() - timedelta(minutes=61))
    assert renew_once() == 1
    assert Operation.objects.count() == 2
    assert (operation.kind, pin.slot) == ("rotate-cert", "current")


def test_a_certificate_that_was_not_renewed_raises_an_alarm_and_takes_it_back(transactional_db) -> None:
    authority.ensure()
    local_machine(9443)
    NodePin.objects.update(cert_not_after=clock.now() + timedelta(days=16))
    renew_once()
    assert not NodeCondition.objects.exists()
    NodePin.objects.update(cert_not_after=clock.now() + timedelta(days=14))
    renew_once()
    assert [row.code for row in NodeCondition.objects.all()] == ["certificate_expires"]
    NodePin.objects.update(cert_not_after=clock.now() + timedelta(days=89))
    renew_once()
    assert not NodeCondition.objects.exists()


@pytest.mark.parametrize(("minutes", "told"), [(-120, True), (-15, False), (0, False), (14, False), (120, True)])
def test_a_clock_that_is_far_off_is_told_with_both_times(agent, minutes: int, told: bool, monkeypatch) -> None:
    info = health.probe("local")
    theirs = (clock.now() + timedelta(minutes=minutes, seconds=2)).isoformat()
    reachability.observe_info("local", info.model_copy(update={"time": theirs}), 1)
    found = list(NodeCondition.objects.filter(code="clock_differs"))
    assert bool(found) is told
    if told:
        assert found[0].detail.count("UTC") == 2
    assert registry.update("local", {}, PERSON).pk == "local"
