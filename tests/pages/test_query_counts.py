"""The cost of a page does not grow with what it shows."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from tests.pages import seed

pytestmark = pytest.mark.app

PAGES = (
    ("home", []),
    ("dashboard", []),
    ("nodes:list", []),
    ("nodes:tab", ["atlas", "gpus"]),
    ("nodes:history", ["atlas"]),
    ("nodes:detail", ["atlas"]),
    ("nodes:tab", ["atlas", "commands"]),
    ("models:list", []),
    ("models:detail", ["qwen3-14b"]),
    ("models:node-cells", []),
    ("models:of-node", ["atlas"]),
    ("models:playground", []),
    ("models:keys", []),
    ("models:usage", []),
    ("jobs:list", []),
    ("jobs:activity", []),
    ("jobs:node-history", ["atlas"]),
    ("jobs:node-cells", []),
    ("jobs:downloads", []),
    ("models:catalog", []),
    ("jobs:timeline", ["qwen3-coder"]),
    ("audit:list", []),
)


def _queries(client, url: str) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return [query["sql"] for query in captured.captured_queries]


def _twice_the_fleet() -> None:
    from jobs.models import OperationEvent
    from mirbad.kernel import clock
    from models_app import keys

    for number in range(12):
        seed.node(f"more-{number}", "", gpus=2)
        seed.model(f"more-{number}", f"more-{number}")
        seed.seen(f"more-{number}", "ready")
        seed.operation(f"more-{number}")
        keys.create(f"more {number}", actor=seed.ADMIN)
        seed.audit_log.record("node.drain", seed.ADMIN, node_id="atlas")
    started = seed.Operation.objects.get(model_id_text="qwen3-coder", finished_at=None)
    for number in range(20):
        OperationEvent.objects.create(operation=started, time=clock.now(), stage="waiting", text=f"Line {number}.")
    seed.model("beside", "atlas")


@pytest.mark.parametrize(("name", "args"), PAGES)
def test_more_rows_cost_no_more_queries(db, viewer, name, args):
    seed.fleet()
    url = reverse(name, args=args)
    _queries(viewer.client, url)  # the first one fills caches of sessions and content types
    few = _queries(viewer.client, url)
    _twice_the_fleet()
    many = _queries(viewer.client, url)
    assert len(many) == len(few), "\n".join(many)
    assert len(few) <= 22
