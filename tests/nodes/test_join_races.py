"""Joins that happen at the same moment, in real threads with real transactions."""

import threading

import pytest
from django.db import connection

from agent.common import keys
from mirbad.kernel.errors import Conflict
from nodes import registry
from nodes.enrollment import join, tokens
from nodes.errors import EnrollmentRefused, PinChanged
from nodes.models import JoinToken, Node, NodePin
from tests.nodes.parts import OPERATOR, enrolled, pin_of, request_for

pytestmark = [pytest.mark.app, pytest.mark.usefixtures("live_master")]


def together(works):
    """Run all of `works` at once; their results, an exception standing for itself."""
    results, barrier = [None] * len(works), threading.Barrier(len(works))

    def run(index, work):
        barrier.wait()
        try:
            results[index] = work()
        except Exception as error:  # noqa: BLE001
            results[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("round_number", range(3))
def test_of_many_keys_with_one_token_exactly_one_wins(round_number):
    made = tokens.create("pc-1", actor=OPERATOR)
    racers = [keys.new_key() for _ in range(12)]
    requests = [request_for(made.token, "pc-1", key) for key in racers]
    results = together(
        [lambda request=request, n=n: join.enroll(request, f"192.0.2.{n}") for n, request in enumerate(requests)]
    )
    won = [key for key, result in zip(racers, results, strict=True) if not isinstance(result, Exception)]
    assert [type(result) for result in results if isinstance(result, Exception)] == [EnrollmentRefused] * 11
    assert len(won) == 1
    assert pin_of("pc-1", NodePin.PENDING) == keys.spki_of(won[0].public_key())


def test_one_machine_that_asks_many_times_at_once_gets_one_answer():
    made = tokens.create("pc-1", actor=OPERATOR)
    request = request_for(made.token, "pc-1", keys.new_key())
    results = together([lambda: join.enroll(request, "192.0.2.1") for _ in range(8)])
    assert all(result == results[0] for result in results), results
    assert Node.objects.count() == NodePin.objects.count() == 1


def test_two_tokens_for_one_new_id_leave_one_pending_key_and_no_unnamed_error():
    made = [tokens.create("pc-1", actor=OPERATOR) for _ in range(6)]
    racers = [keys.new_key() for _ in made]
    results = together(
        [
            lambda token=one.token, key=key: join.enroll(request_for(token, "pc-1", key), "192.0.2.1")
            for one, key in zip(made, racers, strict=True)
        ]
    )
    assert not [
        result for result in results if isinstance(result, Exception) and not isinstance(result, EnrollmentRefused)
    ]
    assert Node.objects.count() == NodePin.objects.count() == 1
    assert len({result.node_uid for result in results if not isinstance(result, Exception)}) == 1
    assert pin_of("pc-1", NodePin.PENDING) in {keys.spki_of(key.public_key()) for key in racers}


def test_one_key_for_two_ids_at_once_names_one_node():
    made = [tokens.create(f"pc-{n}", actor=OPERATOR) for n in range(4)]
    key = keys.new_key()
    results = together(
        [lambda one=one: join.enroll(request_for(one.token, one.node_id, key), "192.0.2.1") for one in made]
    )
    assert sum(not isinstance(result, Exception) for result in results) == 1
    assert Node.objects.count() == 1
    assert JoinToken.objects.exclude(used_at=None).count() == 1


def test_an_approval_beside_a_new_enrollment_never_admits_the_unseen_key():
    for _ in range(5):
        second = tokens.create("pc-1", actor=OPERATOR)
        machine = enrolled("pc-1")
        other = keys.new_key()
        joined, approval = together(
            [
                lambda token=second.token, key=other: join.enroll(request_for(token, "pc-1", key), "192.0.2.1"),
                lambda spki=machine.spki: registry.approve("pc-1", spki, OPERATOR),
            ]
        )
        current = pin_of("pc-1")
        if isinstance(approval, Exception):
            assert isinstance(approval, PinChanged)
            assert current is None
            assert not isinstance(joined, Exception)
        else:
            assert current == machine.spki
            assert isinstance(joined, EnrollmentRefused)
        assert isinstance(approval, Node | Conflict)
        Node.objects.all().delete()
        JoinToken.objects.all().delete()
