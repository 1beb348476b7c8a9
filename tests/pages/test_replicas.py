"""The pages of models on several nodes: what is shown of each replica, and what may be done with it."""

import pytest
from django.urls import reverse

from models_app.models import Placement
from tests.pages import seed, spread

pytestmark = pytest.mark.app


@pytest.fixture(autouse=True)
def _fleet(db) -> None:
    spread.models()


def page(who, name: str, *args: str) -> str:
    answer = who.client.get(reverse(name, args=args))
    assert answer.status_code == 200
    return answer.content.decode()


def replica(node_id: str, model_id: str) -> str:
    return str(Placement.objects.get(model_id=model_id, node_id_text=node_id).replica)


def test_each_replica_is_shown_with_its_state(viewer) -> None:
    text = page(viewer, "models:detail", "chat-small")
    assert "2 of 3 replicas are serving." in text
    assert text.count('<tr id="replica-') == 3
    for name in ("Ridge", "Slope", "Tarn"):
        assert name in text
    assert seed.OUT_OF_MEMORY in text


def test_a_replica_on_several_nodes_says_how_many_of_its_shards_are_ready(viewer) -> None:
    text = page(viewer, "models:detail", "chat-huge")
    assert "2 of 3 shards ready" in text
    assert "3 nodes as one" in text
    assert text.count('<tr id="replica-') == 1
    assert "shard 0, serves" in text
    assert 'id="log-node"' in text


def test_a_model_on_one_node_is_shown_as_ever_and_may_get_a_replica(operator, viewer) -> None:
    text = page(operator, "models:detail", "chat-alone")
    assert 'id="replicas"' not in text
    assert reverse("models:replica-add", args=["chat-alone"]) in text
    assert reverse("models:replica-add", args=["chat-alone"]) not in page(viewer, "models:detail", "chat-alone")


def test_the_lists_name_every_node_and_a_node_shows_its_own_part(viewer) -> None:
    assert page(viewer, "models:list").count("/nodes/tarn") == 2
    cells = page(viewer, "models:node-cells")
    tarn = cells.split('hx-target="#models-of-tarn"')[1].split("</hx-partial>")[0]
    assert "Chat Small: Failed" in tarn
    assert "Chat Huge 405B: Ready" in tarn
    assert "0 of 2 ready" in tarn, "a shard that is ready serves nothing while the whole does not"
    assert "Chat Small" in page(viewer, "models:of-node", "tarn")
    assert "mlx5_2, mlx5_3" in page(viewer, "nodes:detail", "tarn")


def test_a_replica_is_added_on_the_page(operator) -> None:
    form = page(operator, "models:replica-add", "chat-alone")
    assert "fabric ib-b" in form
    assert 'value="ridge"' not in form, "it stands there already"
    answer = operator.client.post(
        reverse("models:replica-add", args=["chat-alone"]),
        {"nodes": ["slope", "tarn"], **{f"gpus-{name}": [seed.gpu_uuid(name, 1)] for name in ("slope", "tarn")}},
    )
    assert answer.status_code == 302
    added = Placement.objects.filter(model_id="chat-alone", shards=2)
    assert [(one.node_id_text, one.shard) for one in added.order_by("shard")] == [("slope", 0), ("tarn", 1)]


def test_a_refused_replica_is_told_where_the_person_acted(operator) -> None:
    spread.on_fabric("island", "Island")
    answer = operator.client.post(
        reverse("models:replica-add", args=["chat-alone"]),
        {"nodes": ["slope", "island"], **{f"gpus-{name}": [seed.gpu_uuid(name, 1)] for name in ("slope", "island")}},
        headers={"HX-Request": "true"},
    )
    assert answer.status_code == 400
    assert "has no usable fabric" in answer.content.decode()
    assert "placement_invalid" in answer.content.decode()
    answer = operator.client.post(
        reverse("models:replica-add", args=["chat-alone"]), {}, headers={"HX-Request": "true"}
    )
    assert "Name at least one node" in answer.content.decode()


def test_one_replica_is_stopped_and_removed_by_its_own_buttons(operator) -> None:
    which = replica("tarn", "chat-small")
    stop = reverse("jobs:replica-stop", args=["chat-small", which])
    remove = reverse("models:replica-remove", args=["chat-small", which])
    assert stop in page(operator, "models:detail", "chat-small")
    assert operator.client.post(stop).status_code == 302
    assert Placement.objects.filter(model_id="chat-small", desired="stopped").count() == 1
    Placement.objects.filter(replica=which).update(observed="stopped")
    assert remove in page(operator, "models:detail", "chat-small")
    assert operator.client.post(remove).status_code == 302
    assert Placement.objects.filter(model_id="chat-small").count() == 2


def test_viewers_do_nothing_here(viewer) -> None:
    which = replica("tarn", "chat-small")
    for name in ("jobs:replica-start", "jobs:replica-stop", "models:replica-remove"):
        assert viewer.client.post(reverse(name, args=["chat-small", which])).status_code == 403
        assert reverse(name, args=["chat-small", which]) not in page(viewer, "models:detail", "chat-small")
    assert viewer.client.get(reverse("models:replica-add", args=["chat-small"])).status_code == 403


def test_logs_are_read_by_node(viewer, monkeypatch) -> None:
    asked = []

    def call(node_id, method, path, **_):
        from agent.wire.instances import LogSlice

        asked.append((node_id, path.split("/")[1]))
        return LogSlice(lines=("a line",), next=1)

    monkeypatch.setattr("nodes.link.client.call", call)
    url = reverse("models:log", args=["chat-small"])
    viewer.client.get(url, {"node": "slope"}, headers={"HX-Request": "true"})
    viewer.client.get(url, headers={"HX-Request": "true"})
    by_node = {one.node_id_text: str(one.pk) for one in Placement.objects.filter(model_id="chat-small")}
    assert asked == [("slope", by_node["slope"]), ("ridge", by_node["ridge"])]
