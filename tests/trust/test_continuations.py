"""Continuations of a takeover on a node that was out of reach: what they need, and what ends them."""

import pytest

from audit.models import AuditLine
from jobs.requests import takeover
from mirbad.kernel.errors import Conflict, NotFound
from nodes import fencing
from nodes.errors import ConfirmationRequired
from nodes.link import health
from nodes.models import Node
from tests.nodes.parts import OPERATOR
from tests.trust.parts import copy, run

pytestmark = [pytest.mark.app, pytest.mark.django_db]


def left_to_the_other_master(table, cut=frozenset(), times=1):
    """Return node a, which a copy's takeover did not reach and the first master, cut from `cut`, took meanwhile."""
    other = copy(table)
    table.here().cut = {"a"}
    run(table, takeover.request(takeover.PHRASE, OPERATOR))
    table.act("m0")
    table.here().cut = set(cut)
    for _ in range(times):
        run(table, takeover.request(takeover.PHRASE, OPERATOR))
    table.act(other)
    table.here().cut = set()
    with pytest.raises(Exception, match="obeys another master"):
        health.connect("a")
    return Node.objects.get(pk="a")


def test_a_continuation_needs_the_node_that_was_seen(table):
    node = left_to_the_other_master(table, cut={"b", "c"}, times=2)
    assert not fencing.is_fenced()
    for arguments, refusal in (
        (("x", node.takeover_id, 3, "x"), NotFound),
        (("a", node.takeover_id, 3, "b"), ConfirmationRequired),
        (("a", "op-other", 3, "a"), Conflict),
        (("a", node.takeover_id, 2, "a"), Conflict),
        (("b", node.takeover_id, 2, "b"), Conflict),
    ):
        with pytest.raises(refusal):
            takeover.resume(*arguments, OPERATOR)
    operation = takeover.resume("a", node.takeover_id, 3, "a", OPERATOR)
    assert takeover.resume("a", node.takeover_id, 3, "a", OPERATOR).pk == operation.pk
    with pytest.raises(Conflict):
        takeover.request(takeover.PHRASE, OPERATOR)
    done = run(table, operation)
    assert (done.outcome, done.result["claimed"], done.result["epoch"]) == ("succeeded", ["a"], 4)
    lines = AuditLine.objects.filter(action="fencing.continue").values_list("result", flat=True)
    assert sorted(lines) == ["accepted", *["refused"] * 5, "succeeded"]


def test_a_continuation_ends_when_the_node_was_taken_again_meanwhile(table):
    node, other = left_to_the_other_master(table), table.acting
    operation = takeover.resume("a", node.takeover_id, node.held_epoch, "a", OPERATOR)
    table.act("m0")
    run(table, takeover.request(takeover.PHRASE, OPERATOR))
    table.act(other)
    done = run(table, operation)
    assert (done.outcome, done.error["code"]) == ("failed", "invalid_state")
