"""The tests of the fence can fail: each mutant of the code that it guards is caught by them."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.errors import AgentError
from agent.fence import Fence
from agent.server import app
from agent.server.handlers import get_info
from agent.wire.fence import Claim
from tests.agent.core import test_routes

pytestmark = pytest.mark.unit

UID = "7a1f4e0c-0b5e-4c39-9a43-3a1f1c7d2b10"


class NotDurable(Fence):
    """Remembers the claim and never writes it."""

    async def _store(self, claim: Claim) -> None:
        self._held = claim


class EqualAccepted(Fence):
    """Takes any master of the same epoch."""

    def _compare(self, claim: Claim) -> None:
        if self._held is not None and claim.epoch < self._held.epoch:
            super()._compare(claim)


class LowerAccepted(Fence):
    """Compares nothing."""

    def _compare(self, claim: Claim) -> None:
        return


def obeyed(make: Callable[[Path], Fence], folder: Path, seed: int) -> bool:
    """Play random masters and restarts against a fence; whether it did what a fence does."""
    chance = random.Random(seed)

    async def play() -> bool:
        fence, held = make(folder), None
        for _ in range(40):
            if chance.random() < 0.3:
                fence = make(folder)
            claim = Claim(epoch=chance.randint(1, 5), instance_id=chance.choice(("master-aa", "master-bb")))
            expected = held is None or claim == held or claim.epoch > held.epoch
            try:
                async with fence.admitted(claim):
                    admitted, durable = True, Fence(folder, UID).held == claim
            except AgentError:
                admitted, durable = False, True
            if admitted != expected or not durable:
                return False
            held = claim if admitted else held
        return True

    return asyncio.run(play())


@pytest.mark.parametrize("mutant", [NotDurable, EqualAccepted, LowerAccepted])
def test_a_fence_that_forgets_its_duty_is_caught(mutant: type[Fence], tmp_path_factory: Any) -> None:
    outcomes = [obeyed(lambda f: mutant(f, UID), tmp_path_factory.mktemp("fence"), seed) for seed in range(5)]
    assert not all(outcomes)


def test_the_real_fence_is_not(tmp_path_factory: Any) -> None:
    assert all(obeyed(lambda f: Fence(f, UID), tmp_path_factory.mktemp("fence"), seed) for seed in range(20))


def test_an_unfenced_route_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_routes, "ROUTES", (*app.ROUTES, ("POST", "/instances/{instance_id}/restart", get_info)))
    with pytest.raises(AssertionError, match="restart"):
        test_routes.test_every_route_that_changes_something_is_fenced_and_journaled()
