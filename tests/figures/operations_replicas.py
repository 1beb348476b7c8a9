"""A replica on three nodes whose shards are killed one after another: how soon it is noticed, and how soon it is back.

Real agents, engine processes that meet over TCP, the watcher, the loop that rebuilds; routes as the gateway reads them.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.figures.apart import run_apart
from tests.figures.figure import Figure, exactly, under
from tests.waiting import pause

_NODES = ("n0", "n1", "n2")
_ROUNDS = 3
_LONGEST_SECONDS = 60.0


def measure() -> Iterator[Figure]:
    """In a process of its own."""
    found = run_apart("tests.figures.operations_replicas")
    kills = _ROUNDS * len(_NODES)
    yield exactly(f"shards killed of a replica on {len(_NODES)} nodes, whole again", found["whole"], kills)
    yield exactly("shards left over from an earlier start", found["left"], 0)
    yield exactly("looks at a route that was ready though a shard was known to be lost", found["wrong"], 0)
    yield under("longest from a shard's death until the replica is routed to no more", found["noticed"], 10.0, "s")
    yield under("longest from a shard's death until all shards serve again", found["back"], 30.0, "s")


def _main(folder: Path) -> dict[str, Any]:
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from jobs.loops import replicas
    from jobs.requests import model_runs
    from models_app.models import Placement
    from models_app.placement import apply
    from nodes.pki import authority
    from tests.bench.loops import Loops
    from tests.jobs import test_replicas_real as parts
    from tests.jobs.real import RealAgent
    from tests.models_app.things import PERSON, placed
    from tests.waiting import until

    authority.ensure()
    replicas.MOST_REBUILDS = 10**6
    for name in ("mlx5_0", "mlx5_1"):
        (folder / "sys/class/infiniband" / name).mkdir(parents=True)
    agents = [RealAgent(folder / name, name, fabrics=("ib-b",), sysfs_root=folder / "sys").begin() for name in _NODES]
    end = parts.watch()
    try:
        until(lambda: all(agent.node.reachability == "online" for agent in agents), "the nodes to be online")
        placed(node_id=_NODES[0])
        Placement.objects.all().delete()
        apply.add_replica("tiny", [(name, ()) for name in _NODES], PERSON)
        model_runs.start("tiny", PERSON)
        parts.work()
        with Loops((replicas.rebuild_once,), seconds=3.0):
            kills = [_kill(shard) for _ in range(_ROUNDS) for shard in range(len(_NODES))]
    finally:
        end()
        for agent in agents:
            agent.clear()
    return {
        "whole": sum(kill["back"] is not None for kill in kills),
        "left": sum(kill["left"] for kill in kills),
        "wrong": sum(kill["wrong"] for kill in kills),
        "noticed": max(kill["noticed"] for kill in kills),
        "back": max(kill["back"] or _LONGEST_SECONDS for kill in kills),
    }


def _kill(shard: int) -> dict[str, Any]:
    """Kill one shard's engine, and look at the route until the whole is back."""
    from models_app.gateway import loader
    from models_app.gateway.table import RouteState
    from models_app.models import Placement
    from models_app.states import READY

    before = {row.shard: row.observed_view["pid"] for row in Placement.objects.all()}
    began = time.monotonic()
    os.kill(before[shard], signal.SIGKILL)
    noticed, wrong = None, 0
    while time.monotonic() - began < _LONGEST_SECONDS:
        known = list(Placement.objects.values_list("observed", flat=True))
        (route,) = loader.build().models["tiny"].routes
        lost = any(state != READY for state in known)
        after = list(Placement.objects.values_list("observed", flat=True))
        # Only when what is known was the same before and after the look is the look to be judged.
        wrong += route.state is RouteState.READY and lost and known == after
        if noticed is None and route.state is not RouteState.READY:
            noticed = time.monotonic() - began
        if noticed is not None and route.state is RouteState.READY:
            return {"noticed": noticed, "wrong": wrong, "back": time.monotonic() - began, "left": _left(before)}
        pause(0.02)
    return {"noticed": noticed or _LONGEST_SECONDS, "wrong": wrong, "back": None, "left": _left(before)}


def _left(before: dict[int, int]) -> int:
    """Return the number of processes of the earlier start that live on."""
    found = 0
    for pid in before.values():
        try:
            found += psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            continue
    return found


if __name__ == "__main__":
    print(json.dumps(_main(Path(sys.argv[1]))))
