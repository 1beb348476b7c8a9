"""Set-up of the tests of operations: an agent at the seam, and a clock that need not be waited for."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from jobs import worker
from jobs.models import Operation
from jobs.queries import unfinished
from mirbad.kernel import clock
from tests.standins.memory import MemoryAgent


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> MemoryAgent:
    fake = MemoryAgent()
    monkeypatch.setattr("nodes.link.client.call", fake.call)
    return fake


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Move the master's clock forward by seconds."""
    real, ahead = clock.now, [timedelta(0)]
    monkeypatch.setattr(clock, "now", lambda: real() + ahead[0])

    def forward(seconds: float) -> None:
        ahead[0] += timedelta(seconds=seconds)

    return forward


@pytest.fixture
def finish(pass_time: Callable[[float], None]) -> Callable[[str], Operation]:
    """Run an operation to its end as a worker would, without waiting for the pauses between its steps."""

    def run(operation_id: str, steps: int = 60) -> Operation:
        for _ in range(steps):
            worker.run(operation_id)
            if not unfinished().filter(pk=operation_id).exists():
                return Operation.objects.get(pk=operation_id)
            pass_time(6)
        raise AssertionError(f"not over after {steps} rounds: {Operation.objects.values().get(pk=operation_id)}")

    return run
