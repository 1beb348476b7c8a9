"""A fenced master: the writes that it refuses, and the work that waits for its takeover."""

from types import SimpleNamespace

import pytest

from jobs import worker
from jobs.loops import resume, sweep
from jobs.models import Operation
from jobs.requests import cancellation, model_runs
from mirbad.kernel import clock
from models_app import registry
from models_app.models import Placement
from models_app.placement import apply
from nodes import fencing
from nodes.errors import MasterFenced
from nodes.models import MasterIdentity
from nodes.pki import authority
from tests.nodes.parts import OPERATOR
from tests.pages import seed

pytestmark = [pytest.mark.app, pytest.mark.django_db]


@pytest.fixture
def fenced(db):
    """A master that an agent refused, with a model that runs and one operation that is open."""
    authority.ensure()
    seed.node("atlas", "Atlas")
    seed.model("smol", "atlas", runtime="llama.cpp")
    operation = model_runs.start("smol", OPERATOR)
    fencing.fence("Node atlas obeys another master.")
    return operation


def test_every_write_of_a_fenced_master_is_refused(fenced):
    model = SimpleNamespace(id="smol")
    data = registry.ModelInput(id="other", runtime="sim", delivery="process", sources=[{"folder": "smollm2-135m"}])
    writes = {
        "start": lambda: model_runs.start(model.id, OPERATOR),
        "stop": lambda: model_runs.stop(model.id, OPERATOR),
        "restart": lambda: model_runs.restart(model.id, OPERATOR),
        "cancel": lambda: cancellation.request(fenced.pk, OPERATOR),
        "create": lambda: registry.create(data, OPERATOR),
        "update": lambda: registry.update("smol", data.model_copy(update={"id": "smol"}), OPERATOR),
        "delete": lambda: registry.delete("smol", OPERATOR),
        "place": lambda: apply.place("smol", "atlas", (), OPERATOR),
    }
    refusals = {}
    for name, write in writes.items():
        with pytest.raises(MasterFenced) as refused:
            write()
        refusals[name] = (refused.value.code, refused.value.http_status)
    assert refusals == dict.fromkeys(writes, ("master_fenced", 409))


def test_the_work_of_a_fenced_master_waits_and_goes_on_after_the_takeover(fenced):
    assert worker.run_step(fenced.pk) is None
    assert sweep.sweep_once() == 0
    Placement.objects.update(desired="running", observed="stopped")
    Operation.objects.all().update(finished_at=clock.now(), outcome="failed")
    assert resume.resume_once() == 0
    assert resume.autostart() == 0
    Operation.objects.all().update(finished_at=None, outcome="open")
    MasterIdentity.objects.update(fenced_reason="")
    assert worker.run_step(fenced.pk) is not None
