"""Seconds, memory and statements of a large import. Run by hand: ``pytest tests/jobs/backup/importing/scale.py``.

`MIRBAD_TEST_IMPORT_REPORT` is a file for the figures.
"""

import json
import os
import resource
import time
import tracemalloc
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.backup import making, verification
from jobs.backup.importing import content
from jobs.backup.importing.choices import ImportChoices
from jobs.kinds import restore as kind
from jobs.models import Operation
from jobs.requests import restore
from mirbad.kernel.ids import new_uid
from models_app.models import Hold, ModelDefinition, ModelSource, Placement
from models_app.registry import specs
from nodes.models import Gpu, Node
from nodes.pki import authority
from tests.jobs.backup.fleet import PASSPHRASE
from tests.jobs.backup.importing.fleets import forget_models
from tests.models_app.things import GIB, PERSON, capabilities, gpu

pytestmark = [pytest.mark.app, pytest.mark.django_db(transaction=True)]

MODELS, NODES = 2000, 200


def fill() -> None:
    authority.ensure()
    nodes, cards = [], []
    for number in range(NODES):
        reported = [gpu(f"GPU-{number}-{at}").model_copy(update={"index": at}) for at in range(4)]
        columns = {"address": "192.0.2.1", "lifecycle": "approved", "reachability": "online", "capabilities_seq": 1}
        node = Node(pk=f"n{number:03}", capabilities=capabilities(*reported).to_wire(), **columns)
        nodes.append(node)
        cards += [
            Gpu(node=node, uuid=card.uuid, index=at, name=card.name, memory_bytes=24 * GIB)
            for at, card in enumerate(reported)
        ]
    Node.objects.bulk_create(nodes)
    Gpu.objects.bulk_create(cards)
    models, sources, placements = [], [], []
    for number in range(MODELS):
        pk = f"m{number:04}"
        env = specs.seal_env(pk, {"HF_TOKEN": f"secret-{number}"})
        models.append(
            ModelDefinition(
                pk=pk, runtime="sim", delivery="process", tags=["chat"], secret_env_names=["HF_TOKEN"],
                secret_env_sealed=env,
            )
        )  # fmt: skip
        sources.append(ModelSource(model_id=pk, kind="huggingface", folder=f"acme--{pk}", repository=f"acme/{pk}"))
        placements.append(
            Placement(
                model_id=pk, node_id_text=f"n{number % NODES:03}", gpu_uuids=[f"GPU-{number % NODES}-0"],
                desired="running", observed="ready", start_seconds=9.5,
            )
        )  # fmt: skip
    for table, rows in ((ModelDefinition, models), (ModelSource, sources), (Placement, placements)):
        table.objects.bulk_create(rows, batch_size=200)


class Measured(dict[str, object]):
    """The figures by name."""

    def timed(self, name, call):
        """Note the peak of memory of one call, and the seconds and statements of a second one; return its result."""
        tracemalloc.start()
        call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        with CaptureQueriesContext(connection) as queries:
            found = self.timed_once(name, call)
        self[name] = {"seconds": self[name], "MB": round(peak / 1e6), "queries": len(queries)}
        return found

    def timed_once(self, name, call):
        """Note the seconds of one call; return its result."""
        began = time.monotonic()
        found = call()
        self[name] = round(time.monotonic() - began, 2)
        return found


@pytest.mark.timeout(600)
def test_two_thousand_models_on_two_hundred_nodes(tmp_path) -> None:
    fill()
    report = Measured(models=MODELS, nodes=NODES, database=connection.vendor)
    path = tmp_path / "fleet.backup"

    report.timed_once("create", lambda: making.create(path, PASSPHRASE, PERSON))
    report["bytes"] = path.stat().st_size
    report.timed("verify", lambda: verification.verify(path, PASSPHRASE))
    read = report.timed("read", lambda: content.read(path, PASSPHRASE))
    report.timed("preview, all kept", lambda: restore.preview(read, ImportChoices()))
    forget_models()
    plan = report.timed("preview, all created", lambda: restore.preview(read, ImportChoices()))

    def write():
        forget_models()
        before = len(connection.queries)
        report.timed_once("import, seconds", lambda: restore.request(read, ImportChoices(), plan.digest, PERSON))
        report["import, queries"] = len(connection.queries) - before

    report.timed("import with the deletion of what was there", write)
    assert (ModelDefinition.objects.count(), Placement.objects.count(), Hold.objects.count()) == (MODELS,) * 3
    operation = Operation.objects.get()
    report["operation, bytes of input"] = len(json.dumps(operation.input))
    report.timed("one step of the operation", lambda: kind.KIND.stage(kind.STARTING).run(kind.KIND.step(operation)))
    report.timed_once("first round of downloads and starts", lambda: restore.open_next(operation.pk))
    report.timed_once("second round", lambda: restore.open_next(operation.pk))
    report["starts"] = Operation.objects.filter(kind="launch").count()
    uid = new_uid()
    Node.objects.filter(pk="n000").update(uid=uid)
    report.timed("preview, all here", lambda: restore.preview(read, ImportChoices()))
    report["peak of the process, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
    print(json.dumps(report, indent=1))
    if target := os.environ.get("MIRBAD_TEST_IMPORT_REPORT"):
        Path(target).write_text(json.dumps(report))
