"""Moves between two real agents with real engines, under load through the real gateway."""

from collections.abc import Iterator

import psutil
import pytest

from jobs import moves, requests
from models_app.models import Placement
from nodes.pki import authority
from tests.jobs.moves.bench import Door, TwoNodes, run
from tests.models_app.things import PERSON, placed

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def nodes(transactional_db, tmp_path) -> Iterator[TwoNodes]:
    authority.ensure()
    for name in ("local", "next"):
        (tmp_path / name).mkdir()
    with TwoNodes(tmp_path).up() as made:
        yield made


def test_no_request_fails_while_a_model_is_handed_over(nodes) -> None:
    placed(node_id="local", args=["--start-seconds", "0.5", "--tokens-per-second", "40"])
    assert run(requests.start("tiny", PERSON)).outcome == "succeeded"
    pid = Placement.objects.get().observed_view["pid"]
    with Door() as door, nodes.load(door, "tiny").on() as load:
        done = run(moves.request("tiny", "next", (), PERSON))
        while load.answered < 60:
            assert not load.failed, load.failed
    assert (done.outcome, done.error) == ("succeeded", {})
    assert load.failed == []
    assert load.streams > 20
    assert load.gap < 1.5
    placement = Placement.objects.get()
    assert (placement.node_id_text, placement.observed, placement.routed) == ("next", "ready", True)
    assert not psutil.pid_exists(pid)
