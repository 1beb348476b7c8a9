"""Observed states of placements are written by one module, and an older report never wins."""

from typing import Any

import pytest

from agent.wire.instances import InstanceState, InstanceView
from agent.wire.status import HostStatus, NodeStatus
from models_app import routing, running
from models_app.models import Placement
from tests.models_app.things import node, placed

pytestmark = [pytest.mark.app, pytest.mark.django_db]


def view(placement: Placement, state: str = "ready", **fields: Any) -> InstanceView:
    values: dict[str, Any] = {
        "instance_id": str(placement.pk),
        "model_id": placement.model_id,
        "generation": 1,
        "config_hash": "c" * 64,
        "operation_id": "op-1:starting",
        "runtime": "sim",
        "delivery": "process",
        "state": state,
    }
    return InstanceView(**(values | fields))


def status(seq: int, *views: InstanceView, boot: str = "boot-1") -> NodeStatus:
    return NodeStatus(
        boot_id=boot,
        seq=seq,
        capabilities_seq=1,
        time="2026-01-01T00:00:00Z",
        held_claim=None,
        host=HostStatus(),
        instances=views,
    )


@pytest.fixture
def placement() -> Placement:
    node("pc-1")
    return placed()


@pytest.mark.parametrize(
    ("state", "fields", "observed"),
    [
        ("preparing", {}, "starting"),
        ("starting", {}, "starting"),
        ("loading", {}, "starting"),
        ("ready", {}, "ready"),
        ("unhealthy", {}, "unhealthy"),
        ("stopping", {}, "stopping"),
        ("exited", {"stop_requested": True}, "stopped"),
        ("exited", {"stop_requested": False, "reason": "out of memory"}, "failed"),
        ("lost", {"reason": "the machine rebooted"}, "stopped"),
    ],
)
def test_each_state_of_an_instance_is_read_in_one_way(placement, state, fields, observed) -> None:
    running.observe("pc-1", status(1, view(placement, state, **fields)))
    placement.refresh_from_db()
    assert placement.observed == observed
    assert placement.observed_reason == fields.get("reason", "")


def test_every_state_of_the_wire_is_read() -> None:
    states = [InstanceState(state) for state in InstanceState]
    assert len(states) == 8
    for state in states:
        assert running.state_of(view(Placement(model_id="x"), state)) in {
            "starting",
            "ready",
            "unhealthy",
            "stopping",
            "stopped",
            "failed",
        }


def test_an_instance_that_the_node_does_not_name_is_stopped(placement) -> None:
    running.observe("pc-1", status(1, view(placement)))
    running.observe("pc-1", status(2))
    placement.refresh_from_db()
    assert (placement.observed, placement.observed_view) == ("stopped", {})


def test_an_older_report_never_wins(placement) -> None:
    running.observe("pc-1", status(5, view(placement, "ready")))
    assert running.observe("pc-1", status(5, view(placement, "loading"))) == 0
    assert running.observe_instance("pc-1", "boot-1", 4, view(placement, "exited")) == 0
    placement.refresh_from_db()
    assert (placement.observed, placement.observed_seq) == ("ready", 5)


def test_a_report_that_changes_nothing_still_counts_as_the_newest(placement) -> None:
    running.observe("pc-1", status(5, view(placement)))
    running.observe("pc-1", status(7, view(placement, memory_bytes=5)))
    assert running.observe_instance("pc-1", "boot-1", 6, view(placement, "exited")) == 0
    placement.refresh_from_db()
    assert placement.observed == "ready"


def test_another_boot_begins_a_new_count(placement) -> None:
    running.observe("pc-1", status(50, view(placement)))
    running.observe("pc-1", status(1, view(placement, "lost"), boot="boot-2"))
    placement.refresh_from_db()
    assert (placement.observed, placement.observed_boot, placement.observed_seq) == ("stopped", "boot-2", 1)


def test_one_instance_is_written_by_its_event(placement) -> None:
    assert running.observe_instance("pc-1", "boot-1", 3, view(placement, "loading")) == 1
    placement.refresh_from_db()
    assert placement.observed == "starting"


def test_a_word_about_another_nodes_placement_is_not_believed(placement) -> None:
    assert running.observe_instance("pc-2", "boot-1", 3, view(placement)) == 0
    placement.refresh_from_db()
    assert placement.observed == "stopped"


def test_an_unreachable_node_leaves_its_placements_unknown_until_it_speaks_again(placement) -> None:
    running.observe("pc-1", status(5, view(placement, "unhealthy", reason="It fails its health checks.")))
    running.observe("pc-1", status(6, view(placement, reason="It is slow.")))
    assert running.mark_unreachable("pc-1") == 1
    assert running.mark_unreachable("pc-1") == 0
    placement.refresh_from_db()
    assert (placement.observed, placement.observed_view["state"]) == ("unknown", "ready")
    assert placement.observed_reason == "The node is not reporting."
    running.observe("pc-1", status(5, view(placement)))
    placement.refresh_from_db()
    assert (placement.observed, placement.observed_reason) == ("ready", "")


def test_the_gateway_is_told_of_what_it_sees_and_of_nothing_else(placement) -> None:
    def bumped(do) -> bool:
        before = routing.version()
        do()
        return routing.version() != before

    assert bumped(lambda: running.observe("pc-1", status(1, view(placement))))
    assert not bumped(lambda: running.observe("pc-1", status(2, view(placement))))
    assert not bumped(lambda: running.observe("pc-1", status(3, view(placement, reason="slow"))))
    assert bumped(lambda: running.observe("pc-1", status(4, view(placement, "unhealthy"))))
    assert bumped(lambda: running.mark_unreachable("pc-1"))
    assert not bumped(lambda: running.mark_unreachable("pc-1"))


def test_the_measured_start_time_is_kept(placement) -> None:
    running.observe("pc-1", status(1, view(placement, start_seconds=3.5)))
    running.observe("pc-1", status(2, view(placement, "exited", stop_requested=True)))
    placement.refresh_from_db()
    assert placement.start_seconds == 3.5


def test_secrets_that_an_engine_prints_do_not_reach_the_rows(placement) -> None:
    words = "token=hf_canary123456789"
    running.observe("pc-1", status(1, view(placement, "exited", reason=words, last_lines=(words,))))
    row = Placement.objects.values().get()
    assert "canary" not in str(row)


def test_the_number_of_statements_does_not_grow_with_unchanged_placements(django_assert_num_queries) -> None:
    node("pc-1")
    placements = [placed(f"m{number}") for number in range(8)]
    running.observe("pc-1", status(1, *(view(p) for p in placements)))
    with django_assert_num_queries(5):  # savepoint, read, stamp, release
        running.observe("pc-1", status(2, *(view(p) for p in placements)))


def test_an_event_of_an_engine_that_is_not_the_masters_changes_nothing(placement) -> None:
    stranger = view(placement).model_copy(update={"instance_id": "left-over-of-another-master"})
    assert running.observe_instance("pc-1", "boot-1", 3, stranger) == 0
    placement.refresh_from_db()
    assert placement.observed_seq == -1
