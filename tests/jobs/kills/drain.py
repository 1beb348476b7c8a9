"""A node with three models is drained while clients ask all three without a pause. Run by the figures."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from jobs import ledger, worker
from jobs.models import Operation
from jobs.requests import evacuation, model_runs
from models_app.models import Placement
from nodes.pki import authority
from tests.jobs.moves.bench import Door, TwoNodes, run
from tests.models_app.things import PERSON, placed
from tests.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

MODELS = ("one", "two", "three")


@pytest.fixture
def nodes(transactional_db, tmp_path) -> Iterator[TwoNodes]:
    authority.ensure()
    with TwoNodes(tmp_path).up() as made:
        yield made


def test_no_request_fails_while_a_node_is_drained(nodes) -> None:
    for model_id in MODELS:
        placed(model_id, "local", args=["--start-seconds", "0.5"])
        assert run(model_runs.start(model_id, PERSON)).outcome == "succeeded"
    with Door() as door, ExitStack() as stack:
        loads = [stack.enter_context(nodes.load(door, model_id, clients=3).on()) for model_id in MODELS]
        until(lambda: all(load.sent > 20 for load in loads), "the clients to ask")
        began = time.monotonic()
        operation = evacuation.request("local", PERSON)
        _work(operation)
        seconds = time.monotonic() - began
        asked = [load.sent for load in loads]
        until(lambda: all(load.sent > before + 20 for load, before in zip(loads, asked, strict=True)), "more")
    operation.refresh_from_db()
    failed = [line for load in loads for line in load.failed]
    told = {
        "sent": sum(load.sent for load in loads),
        "streams": sum(load.streams for load in loads),
        "failed": len(failed),
        "failures": failed[:10],
        "gap": round(max(load.gap for load in loads), 2),
        "seconds": round(seconds, 1),
    }
    if report := os.environ.get("MIRBAD_TEST_KILLS_REPORT"):
        Path(report).write_text(json.dumps(told))
    assert (operation.outcome, failed) == ("succeeded", []), told
    assert set(Placement.objects.values_list("node_id_text", "desired")) == {("next", "running")}


def _work(operation: Operation) -> None:
    """Do the work of beat and the workers until the evacuation is over."""

    def over() -> bool:
        evacuation.open_all()
        for operation_id in ledger.due_ids():
            worker.run(operation_id)
        operation.refresh_from_db()
        return operation.finished_at is not None

    until(over, "the node to be empty", 240)
