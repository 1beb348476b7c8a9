"""Engines that end: killed a hundred times, killed by a request on three replicas, and lost with Docker.

Real agents, engine processes and containers, the watcher, the loops that start models again, and the gateway.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.figures.apart import run_apart
from tests.figures.figure import Figure, exactly, under
from tests.waiting import until

_KILLS = 100
_POISONS = 20
_NODES = ("n0", "n1", "n2")
_BACK_SECONDS = 60.0


def measure() -> Iterator[Figure]:
    """In a process of its own."""
    found = run_apart("tests.figures.faults_engines")
    yield exactly(f"engine killed with kill -9 {_KILLS} times, serving again", len(found["back"]), _KILLS)
    yield under("longest from the kill until it serves again", max(found["back"]), 30.0, "s")
    yield Figure(
        "half of them served again within", f"{sorted(found['back'])[_KILLS // 2]:.1f} s", "information", ok=True
    )
    yield exactly("ends recorded with exit code, signal and audit line", found["recorded"], _KILLS)
    yield exactly(f"replicas ended by {_POISONS} requests that end their engine", found["ended"], _POISONS)
    yield exactly("most replicas ended by one of them", found["most"], 1)
    yield exactly("of these ends with the request and its key", found["named"], _POISONS)
    if found["docker"] is None:
        yield Figure("Docker restarted under a model", "no Docker Engine can be run here", "heals by itself", ok=True)
    else:
        yield under("Docker restarted under a model, from its end until it serves again", found["docker"], 60.0, "s")
        yield exactly("deaths of engines counted for it", found["docker_deaths"], 0)


def _main(folder: Path) -> dict[str, Any]:
    # Every end is the first one of its window: the pauses of a crash loop are a test's, not a figure's.
    os.environ["MIRBAD_ENGINE_RESTART_WINDOW"] = "1s"
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from jobs.loops.restarts import restart_once
    from jobs.loops.resume import resume_once
    from nodes.pki import authority
    from tests.bench.loops import Loops
    from tests.jobs import test_replicas_real as parts

    authority.ensure()
    end = parts.watch()
    try:
        with Loops((restart_once, resume_once), seconds=1.0):
            return _killed(folder / "killed") | _poisoned(folder / "poisoned") | _docker(folder / "docker")
    finally:
        end()


def _serving() -> bool:
    from models_app.models import Placement

    return set(Placement.objects.values_list("observed", flat=True)) == {"ready"}


def _start(*nodes: str, **fields: Any) -> None:
    from jobs.requests import model_runs
    from models_app.models import Placement
    from models_app.placement import apply
    from tests.models_app.things import PERSON, placed

    placed(node_id=nodes[0], **fields)
    for name in nodes[1:]:
        apply.add_replica("tiny", [(name, ())], PERSON)
    model_runs.start("tiny", PERSON)
    until(lambda: Placement.objects.exists() and _serving(), "the model to serve", 120)


def _clear(agents: list[Any]) -> None:
    from models_app.models import EngineExit, ModelDefinition, Placement
    from nodes.models import Node

    Placement.objects.update(desired="stopped")
    Placement.objects.all().delete()
    ModelDefinition.objects.all().delete()
    EngineExit.objects.all().delete()
    for agent in agents:
        agent.clear()
    Node.objects.all().update(lifecycle="revoked")


def _serves_anew(pid: int) -> bool:
    from models_app.models import Placement

    row = Placement.objects.get()
    return bool(row.observed == "ready" and row.observed_view["pid"] != pid)


def _killed(folder: Path) -> dict[str, Any]:
    from audit.models import AuditLine
    from models_app.models import EngineExit, Placement
    from tests.jobs.real import RealAgent

    agent = RealAgent(folder, "k0").begin()
    until(lambda: agent.node.reachability == "online", "the node to be online")
    _start("k0")
    back, recorded = [], 0
    for _ in range(_KILLS):
        pid, began = Placement.objects.get().observed_view["pid"], time.monotonic()
        os.kill(pid, signal.SIGKILL)
        until(lambda old=pid: _serves_anew(old), "the model to serve again", _BACK_SECONDS, every=0.05)
        back.append(time.monotonic() - began)
        recorded += EngineExit.objects.filter(exit_code=137, signal="SIGKILL", was_ready=True).count() == len(back)
    lines = AuditLine.objects.filter(action="model.engine-exit").count()
    _clear([agent])
    return {"back": back, "recorded": min(recorded, lines)}


def _poisoned(folder: Path) -> dict[str, Any]:
    from models_app import keys
    from models_app.models import EngineExit
    from tests.jobs import test_replicas_real as parts
    from tests.jobs import test_restarts_real as poison
    from tests.jobs.real import RealAgent
    from tests.models_app.things import PERSON

    agents = [RealAgent(folder / name, name).begin() for name in _NODES]
    until(lambda: all(agent.node.reachability == "online" for agent in agents), "the nodes to be online")
    _start(*_NODES, args=["--first-token-seconds", "30"])
    key, secret = keys.create("batch", actor=PERSON)
    counts, named = [], 0
    for number in range(1, _POISONS + 1):
        with poison.poison(agents) as killed:
            asyncio.run(parts.ask(secret, 1))
            counts.append(len(killed))
        until(lambda expected=number: EngineExit.objects.count() >= expected, "the end to be recorded", 30)
        newest = EngineExit.objects.order_by("-pk")[0]
        named += [request["keyId"] for request in newest.requests] == [key.pk]
        until(_serving, "all replicas to serve again", 120)
    ended = EngineExit.objects.count()
    _clear(agents)
    return {"ended": ended, "most": max(counts), "named": named}


def _docker(folder: Path) -> dict[str, Any]:
    from models_app.models import Placement
    from tests.bench import images
    from tests.bench.docker import CannotRun, DockerBench
    from tests.jobs.real import RealAgent

    bench = DockerBench()
    try:
        bench.start()
    except CannotRun:
        return {"docker": None, "docker_deaths": 0}
    try:
        image = bench.image(images.SIM)
        agent = RealAgent(folder, "d0", docker_host=bench.host, approved_images=(image.reference,)).begin()
        until(lambda: agent.node.reachability == "online", "the node to be online")
        _start("d0", delivery="container", image=image.repository, imageDigest=image.digest)
        began = time.monotonic()
        bench.stop_engine()
        bench.start_engine()
        until(lambda: not _serving(), "the end to be observed", 30)
        until(_serving, "the model to serve again", 120)
        took, deaths = time.monotonic() - began, Placement.objects.get().exits
        _clear([agent])
        return {"docker": took, "docker_deaths": deaths}
    finally:
        bench.close()


if __name__ == "__main__":
    print(json.dumps(_main(Path(sys.argv[1]))))
