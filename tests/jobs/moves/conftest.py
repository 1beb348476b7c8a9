"""Two nodes with an agent each, at the seam of the link."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from jobs import worker
from jobs.models import Operation
from jobs.requests import model_runs
from mirbad.kernel.conf import settings
from models_app.models import Placement
from nodes.models import Node
from tests.models_app.things import PERSON, node, placed
from tests.standins.memory import MemoryAgent


@dataclass
class Fleet:
    """Nodes ``pc-1`` and ``pc-2`` and their agents by name."""

    agents: dict[str, MemoryAgent] = field(default_factory=lambda: {"pc-1": MemoryAgent(), "pc-2": MemoryAgent()})

    def call(self, node_id: str, *arguments: Any, **also: Any) -> Any:
        return self.agents[node_id].call(node_id, *arguments, **also)

    @property
    def source(self) -> MemoryAgent:
        return self.agents["pc-1"]

    @property
    def target(self) -> MemoryAgent:
        return self.agents["pc-2"]

    def lose(self, node_id: str) -> None:
        """The node does not answer, and the master knows."""
        self.agents[node_id].offline = True
        Node.objects.filter(pk=node_id).update(reachability="offline")

    def find(self, node_id: str) -> None:
        """It is back."""
        self.agents[node_id].offline = False
        Node.objects.filter(pk=node_id).update(reachability="online")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that follow each other faster, and processes that read the table sooner."""
    fast = settings().model_copy(update={"moves_poll_interval": timedelta(seconds=0.15)})
    monkeypatch.setattr("jobs.kinds.move.plan.settings", lambda: fast)
    monkeypatch.setattr("jobs.kinds.move.handover.SETTLE", timedelta(seconds=0.5))


@pytest.fixture
def fleet(db: None, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    node("pc-1")
    node("pc-2")
    made = Fleet()
    monkeypatch.setattr("nodes.link.client.call", made.call)
    return made


@pytest.fixture
def serving(fleet: Fleet, finish: Callable[[str], Operation]) -> Placement:
    """A model that runs on ``pc-1``."""
    placed()
    assert finish(model_runs.start("tiny", PERSON).pk).outcome == "succeeded"
    return Placement.objects.get()


@pytest.fixture
def until(pass_time: Callable[[float], None]) -> Callable[[Operation, str], Operation]:
    """Run an operation step by step until it is at a stage."""

    def run(operation: Operation, stage: str) -> Operation:
        for _ in range(60):
            operation.refresh_from_db()
            assert operation.finished_at is None, (operation.stage, operation.outcome, operation.error)
            if operation.stage == stage:
                return operation
            if worker.run_step(operation.pk):
                pass_time(3)
        raise AssertionError(f"never at {stage}: {operation.stage} {operation.progress}")

    return run
