"""The model of fencing against the real code, and the mutants that it must catch."""

import json
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from aiohttp import web
from django.db import connection
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from agent.fence import Fence
from agent.server import app as agent_app
from agent.server import handlers
from agent.server.keys import INSTANCES
from agent.wire.fence import Claim
from jobs import ledger
from jobs.kinds import takeover
from jobs.requests import takeover as takeover_requests
from nodes import fencing
from tests.trust import bench
from tests.trust.fencing_model import Fencing

pytestmark = [pytest.mark.app, pytest.mark.django_db, pytest.mark.timeout(2400)]

RUNS = int(os.environ.get("MIRBAD_TEST_FENCING_RUNS", "25"))
STEPS = 30
MUTANT_RUNS = 40
games: list[None] = []


def play(runs: int, *, seed: int | None = None) -> None:
    """Play `runs` games; the first that breaks a rule raises. `games` counts those that were begun."""
    chosen = settings(
        max_examples=runs,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        # A game that broke a rule is long enough to be read; making it shorter takes minutes.
        phases=(Phase.generate,),
        print_blob=False,
    )
    games.clear()
    with bench.playing() as make:

        def counted() -> bench.Bench:
            games.append(None)
            return make()

        game = type("Game", (Fencing,), {"make": staticmethod(counted)})
        run_state_machine_as_test(game if seed is None else seeded(seed)(game), settings=chosen)


def report(name: str, value: str) -> None:
    """Tell the figures what came out, when they ask."""
    if path := os.environ.get("MIRBAD_TEST_FENCING_REPORT"):
        with Path(path).open("a") as file:
            file.write(json.dumps([name, value]) + "\n")


def test_no_game_ends_with_two_masters_obeyed():
    play(RUNS)
    assert len(games) >= RUNS
    report("games", f"{len(games)} x {STEPS}")


def _forgetful(self: Fence, claim: Claim) -> Any:
    async def store() -> None:
        self._held = claim

    return store()


def _equal_is_enough(self: Fence, claim: Claim) -> None:
    if self._held is not None and claim.epoch < self._held.epoch:
        REAL_COMPARE(self, claim)


async def _blindly(node_id: str) -> Any:
    return takeover._ClaimResult(node_id, None)


def _fence_at_once(refused: Claim) -> bool:
    return fencing.fence("Node x obeys another master.", refused)


async def _unfenced_stop(request: web.Request) -> web.StreamResponse:
    view = await request.app[INSTANCES].stop(request.match_info["instance_id"], 1.0)
    return web.json_response(view.to_wire(), status=202)


REAL_COMPARE = Fence._compare
ROUTES = tuple(
    (method, path, _unfenced_stop if handler is handlers.post_stop else handler)
    for method, path, handler in agent_app.ROUTES
)
_OBEYED = "an older master is obeyed|two masters of one epoch are obeyed|and obeys someone else|obeys None"
# What is changed, and what the model says of it: caught for another reason, a mutant would not be caught.
MUTANTS = {
    "the mark is not durable": (Fence, "_store", _forgetful, _OBEYED),
    "an equal epoch is accepted": (Fence, "_compare", _equal_is_enough, "two masters of one epoch are obeyed"),
    "a takeover reads nobody": (takeover, "_probe", _blindly, "nobody else acted and the takeover failed"),
    "a restored master keeps its id": (fencing, "bind_instance", lambda: False, "commands without a takeover"),
    "one node's refusal fences": (fencing, "fence_if_refused", _fence_at_once, "fenced by the word of one node"),
    "no refusal fences": (fencing, "fence_if_refused", lambda _: False, "was refused by .* and goes on"),
    "a report is always believed": (fencing, "disbelief", lambda *_: "", "nobody can believe|failed otherwise than"),
    "a setting undoes a stand-down": (
        takeover_requests, "_require_owner_after_stand_down", lambda _: None, "a setting has it take over",
    ),
    "a stand-down leaves the takeover": (ledger, "abandon", lambda *_: False, "its takeover goes on"),
    "a stand-down leaves the claim": (fencing, "stand_down", lambda _: None, "stands down and commands"),
    "one route is not fenced": (agent_app, "ROUTES", ROUTES, _OBEYED),
}  # fmt: skip


def caught(mutant: str) -> str | None:
    """Return the violation that the model finds in a mutant; None when it finds nothing."""
    target, name, replacement, _ = MUTANTS[mutant]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(target, name, replacement))
        try:
            play(MUTANT_RUNS, seed=1)
        except bench.Violation as violation:
            return str(violation)
    return None


@pytest.mark.skipif(connection.vendor != "sqlite", reason="only on SQLite: the model is judged, not the database")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_caught(mutant):
    words = caught(mutant) or ""
    seen = re.search(MUTANTS[mutant][3], words) is not None
    report(mutant, f"caught in game {len(games)}" if seen else "not caught")
    assert seen, f"the model does not see that {mutant}: {words}"
