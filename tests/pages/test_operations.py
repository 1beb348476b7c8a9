"""Operations on the pages, wherever they show: the list, the drawer, the node, and the drain of one."""

import re
from datetime import timedelta

import pytest

from audit.models import AuditLine
from jobs.models import Operation
from mirbad.kernel import clock
from models_app import holds
from nodes.models import MasterIdentity, Node
from nodes.pki import authority
from tests.pages import seed
from tests.pages.markup import compact

pytestmark = pytest.mark.app
HX = {"HX-Request": "true"}


@pytest.fixture(autouse=True)
def _fleet(db) -> None:
    seed.fleet()


def shown(client, url: str) -> str:
    answer = client.get(url, headers=HX)
    assert answer.status_code == 200
    return compact(answer.content)


def an_operation(**columns) -> Operation:
    Operation.objects.all().delete()
    row = seed.operation("qwen3-coder")
    Operation.objects.filter(pk=row.pk).update(**columns)
    return row


def test_the_list_says_stage_age_try_who_and_what_it_waits_for(viewer):
    error = {"code": "node_offline", "detail": "Node atlas is offline, waiting."}
    an_operation(attempt=2, error=error, progress={"text": error["detail"]}, actor="system:autostart")
    text = shown(viewer.client, "/operations")
    (age,) = re.findall(r"Load the model for (\d+) s · attempt 3 · started by", text)
    assert 20 <= int(age) < 60
    assert "system:autostart" in text
    assert "Node atlas is offline, waiting. Attempt 2 of this stage failed." in text
    assert "Cancel" not in text, "a viewer cannot"


def test_it_says_when_nobody_works_on_it_and_when_someone_does(viewer):
    row = an_operation(progress={}, next_run_at=clock.now() - timedelta(seconds=60))
    assert "Waiting for a free worker." in shown(viewer.client, "/operations")
    Operation.objects.filter(pk=row.pk).update(lease_expires_at=clock.now() + timedelta(seconds=9))
    assert "In progress." in shown(viewer.client, "/operations")


def test_while_the_master_is_fenced_it_waits_for_a_takeover(viewer):
    authority.ensure()
    an_operation()
    MasterIdentity.objects.update(fenced_reason="Another master is obeyed.")
    assert "it continues after a takeover" in shown(viewer.client, "/operations")


def test_who_may_operate_cancels_from_the_list_until_there_is_no_way_back(operator):
    an_operation()
    assert "Cancel</button>" in shown(operator.client, "/operations")
    move = {
        "mode": "handover",
        "source": "",
        "sourceNode": "atlas",
        "target": "",
        "gpuUuids": [],
        "running": True,
        "specs": {},
    }
    row = an_operation(kind="move", stage="draining-source", input=move, node_id_text="borealis")
    text = shown(operator.client, "/operations")
    assert "Cancel</button>" not in text
    assert "from atlas to borealis" in text
    assert "Finish requests on atlas" in text
    answer = operator.client.post(f"/operations/{row.pk}/cancel", headers=HX)
    assert answer.status_code == 409
    assert "move it back instead" in answer.content.decode()


def test_a_paused_operation_reads_paused(viewer):
    progress = {"text": "0 of 1 models moved."}
    an_operation(kind="evacuate", stage="moving", progress=progress)
    text = shown(viewer.client, "/operations")
    assert ">Paused<" not in text
    assert "<progress" in text
    an_operation(kind="evacuate", stage="moving", progress=progress | {"paused": True})
    text = shown(viewer.client, "/operations")
    assert ">Paused<" in text
    assert "<progress" not in text, "nothing moves, so nothing seems to"


def test_the_list_is_narrowed_by_kind_node_and_model(viewer):
    Operation.objects.all().delete()
    start, stop = seed.operation("qwen3-coder"), seed.operation("qwen3-14b", "stop", outcome="succeeded")
    move = seed.operation("phi-4", "move", stage="downloading", input={"mode": "handover", "sourceNode": "atlas"})
    Operation.objects.filter(pk=move.pk).update(node_id_text="local")

    def found(query: str) -> set[str]:
        text = shown(viewer.client, f"/operations?{query}")
        return {row.pk for row in (start, stop, move) if f'id="row-{row.pk}"' in text}

    assert found("") == {start.pk, stop.pk, move.pk}
    assert found("kind=stop") == {stop.pk}
    assert found("state=open&model=qwen3-coder") == {start.pk}
    assert found("node=atlas") == {start.pk, stop.pk, move.pk}, "a move concerns the node that it leaves, too"
    assert found("node=local") == {move.pk}
    assert found("model=%00") == {start.pk, stop.pk, move.pk}
    assert "No matching operations." in shown(viewer.client, "/operations?kind=nonsense")


def test_every_page_has_the_drawer_and_it_counts_what_is_open(viewer):
    page = viewer.client.get("/models").content.decode()
    assert 'popovertarget="activity"' in page
    assert 'hx-get="/operations/-/activity"' in page
    an_operation()
    text = shown(viewer.client, "/operations/-/activity")
    assert '<span class="count">1</span>' in text
    assert "1 operation in progress" in text
    Operation.objects.all().delete()
    text = shown(viewer.client, "/operations/-/activity")
    assert "Nothing in progress." in text
    assert 'class="count"' not in text


def test_the_tab_of_a_node_shows_what_is_open_and_what_ended(viewer):
    Operation.objects.all().delete()
    seed.operation("qwen3-coder")
    seed.operation("qwen3-14b", "stop", outcome="failed", error={"code": "stop_timeout", "detail": "It did not end."})
    page = viewer.client.get("/nodes/atlas/operations").content.decode()
    assert 'hx-get="/operations/-/history-of-node/atlas"' in page
    text = shown(viewer.client, "/operations/-/history-of-node/atlas")
    assert "Start qwen3-coder" in text
    assert "It did not end." in text
    assert "Nothing in progress on this node." in shown(viewer.client, "/operations/-/history-of-node/local")


def test_the_list_of_nodes_has_a_column_of_open_operations_and_a_chip_for_a_job(viewer):
    Operation.objects.all().delete()
    seed.operation("qwen3-coder")
    evacuation = seed.operation("", "evacuate", stage="moving")
    Operation.objects.filter(pk=evacuation.pk).update(node_id_text="atlas", target_kind="node", target_id="atlas")
    assert 'scope="col">Open operations</th>' in viewer.client.get("/nodes").content.decode()
    cells = shown(viewer.client, "/operations/-/node-cells")
    ours, job = cells.partition('hx-target="#job-of-atlas"')[0], cells.partition('hx-target="#job-of-atlas"')[2]
    assert "state=open&amp;node=atlas" in ours
    assert '2<span class="visually-hidden">open on atlas' in ours
    assert "Evacuation</a>" in job.partition("</hx-partial>")[0]


def test_the_drain_asks_what_is_to_become_of_the_models_and_says_where_they_would_go(operator):
    text = shown(operator.client, "/nodes/-/drain/atlas")
    assert "Move them to other nodes, one at a time" in text
    assert "qwen3-coder" in text
    for model_id in Operation.objects.values_list("model_id_text", flat=True).distinct():
        holds.release(model_id, "x")
    answer = operator.client.post("/nodes/-/drain/atlas", {"evacuate": ""}, headers=HX)
    assert (answer.status_code, answer["HX-Redirect"]) == (204, "/nodes/atlas")
    assert Node.objects.get(pk="atlas").draining
    assert not Operation.objects.filter(kind="evacuate").exists()


def test_a_drain_with_evacuation_is_an_operation_that_the_node_shows(operator):
    answer = operator.client.post("/nodes/-/drain/atlas", {"evacuate": "on"}, headers=HX)
    assert answer["HX-Redirect"] == "/nodes/atlas"
    operation = Operation.objects.get(kind="evacuate")
    assert "Evacuation of" in shown(operator.client, "/operations/-/of-node/atlas")
    assert f"/operations/{operation.pk}" in shown(operator.client, "/operations/-/node-cells"), "as a chip"


def test_a_drain_that_is_refused_says_why_where_the_person_is(operator):
    answer = operator.client.post("/nodes/-/drain/dune", {"evacuate": "on"}, headers=HX)
    assert answer.status_code == 409
    assert "waits for approval" in answer.content.decode()
    assert AuditLine.objects.filter(action="node.drain", result="refused").count() == 1
