"""The planner over a large fleet: how long one plan takes, how that grows, and how often the database is asked."""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tests.figures.figure import Figure, under

_SIZES = (125, 250, 500, 1000)
_CARDS = 8
_PLACEMENTS = 500
_ROUNDS = 9
_LIMIT_MS = 500.0


def measure() -> Iterator[Figure]:
    """In a process of its own, whose database is its own."""
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MIRBAD_")}
        environment |= {
            "MIRBAD_DATA": folder,
            "MIRBAD_SECRET_KEY": "a secret of the figures, sealed with nothing real",
            "DATABASE_URL": "",
            "DJANGO_SETTINGS_MODULE": "mirbad.settings",
        }
        command = [sys.executable, "-m", "tests.figures.placement_planner"]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield Figure(**json.loads(line))


def _figures() -> Iterator[Figure]:
    """The pure planner on fleets that double, then a whole plan from the database."""
    took = {size: _pure(size) for size in _SIZES}
    name = f"one plan over {_SIZES[-1]} nodes with {_CARDS} GPUs, planner alone (processor time)"
    yield under(name, took[_SIZES[-1]], _LIMIT_MS, "ms")
    steps = "; ".join(f"{size} nodes {took[size]:.1f} ms" for size in _SIZES)
    growth = took[_SIZES[-1]] / took[_SIZES[0]] / (_SIZES[-1] / _SIZES[0])
    yield Figure("its growth", f"{steps}: {growth:.2f} times linear", "at most 1.5 times linear", growth <= 1.5)
    yield from _whole()


def _median(work: Any) -> float:
    """Milliseconds of processor time of one call, the middle one of several: others may work on this machine."""
    took = []
    for _ in range(_ROUNDS):
        begin = time.process_time()
        work()
        took.append((time.process_time() - begin) * 1000)
    return statistics.median(took)


def _pure(size: int) -> float:
    from models_app.fit import of_folder, serve_plan
    from models_app.placement.planner import PlanRequest, plan
    from tests.models_app.fit.public import MODELS

    fleet = _fleet(size)
    model = next(model for model in MODELS if "70B" in model.name)
    wish = PlanRequest("vllm", "container", of_folder(model.folder()), serve_plan("vllm", ("--max-model-len", "32768")),
                image="vllm/vllm-openai")  # fmt: skip
    ranking = plan(wish, fleet)
    assert len(ranking.candidates) + len(ranking.rejections) == size
    assert ranking.candidates
    assert ranking.rejections
    return _median(lambda: plan(wish, fleet))


def _fleet(size: int) -> list[Any]:
    from agent.wire.capability import GpuCapability
    from models_app.fit.verdict import Capacity
    from models_app.placement.feasible import NodeFacts
    from models_app.placement.fleet import FleetCard, Machine
    from tests.models_app.things import GIB, capabilities

    dice = random.Random(size)
    kinds = (("NVIDIA H100", 80), ("NVIDIA A100", 80), ("NVIDIA L40S", 48), ("RTX 4090", 24))
    reports = {
        name: capabilities(
            *(GpuCapability(uuid=f"GPU-{at}", index=at, name=name, memory_bytes=gib * GIB) for at in range(_CARDS)),
            allow_tag_pulls=True,
        )
        for name, gib in kinds
    }
    machines = []
    for number in range(size):
        name, gib = dice.choice(kinds)
        cards = []
        for at in range(_CARDS):
            models = dice.random() < _PLACEMENTS / size / _CARDS
            free = int((gib - (dice.uniform(0.1, 0.9) * gib if models else 0.6)) * GIB)
            cards.append(FleetCard(Capacity(f"GPU {at}", f"GPU-{at}", gib * GIB, free), name, gib * GIB, int(models)))
        facts = NodeFacts(f"node-{number:04d}", "approved", dice.random() < 0.02, reports[name])
        host = Capacity("Host memory", "", 512 * GIB, 400 * GIB, 4 * GIB)
        away = "It is offline." if dice.random() < 0.03 else ""
        machines.append(Machine(facts, host, tuple(cards), sum(card.models for card in cards), away))
    return machines


def _whole() -> Iterator[Figure]:
    from django.core.management import call_command
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from models_app.placement import candidates

    call_command("migrate", verbosity=0)
    _rows()
    begin = time.process_time()
    candidates.rank("wanted")
    first = (time.process_time() - begin) * 1000
    with CaptureQueriesContext(connection) as statements:
        ranking = candidates.rank("wanted")
    took = _median(lambda: candidates.rank("wanted"))
    said = f"{len(ranking.candidates)} choices, {len(ranking.rejections)} refusals"
    value = f"{took:.0f} ms ({first:.0f} ms the first time), {said}"
    name = f"a whole plan from the database, {_SIZES[-1]} nodes, {_SIZES[-1] * _CARDS} GPUs, {_PLACEMENTS} placements"
    yield Figure(name, value, "under 1000 ms", took < 1000)
    yield Figure("its statements", str(len(statements)), "12 at most", len(statements) <= 12)


def _rows() -> None:
    from agent.wire.capability import GpuCapability
    from mirbad.kernel import clock
    from models_app.models import ModelDefinition, ModelSource, Placement
    from nodes.models import Gpu, Node
    from tests.models_app.things import GIB, capabilities

    now, dice = clock.now(), random.Random(3)
    nodes, gpus = [], []
    for number in range(_SIZES[-1]):
        name = f"node-{number:04d}"
        cards = tuple(
            GpuCapability(uuid=f"GPU-{number}-{at}", index=at, name="NVIDIA L40S", memory_bytes=48 * GIB)
            for at in range(_CARDS)
        )
        host = {"memoryTotalBytes": 512 * GIB, "memoryAvailableBytes": 400 * GIB}
        nodes.append(
            Node(pk=name, address="10.0.0.1", lifecycle="approved", reachability="online", last_seen_at=now,
                 capabilities=capabilities(*cards, allow_tag_pulls=True).to_wire(), capabilities_seq=1, host=host)
        )  # fmt: skip
        for at, card in enumerate(cards):
            seen = {"usedBytes": int(dice.uniform(0.4, 20) * GIB), "totalBytes": 48 * GIB}
            gpus.append(
                Gpu(node_id=name, uuid=card.uuid, index=at, name=card.name or "", memory_bytes=48 * GIB, seen=seen)
            )
    Node.objects.bulk_create(nodes)
    Gpu.objects.bulk_create(gpus)
    models = [ModelDefinition(pk=f"model-{at}", runtime="vllm", delivery="container") for at in range(_PLACEMENTS)]
    wanted = ModelDefinition(
        pk="wanted", runtime="vllm", delivery="container", image="vllm/vllm-openai",
        gpu_memory_budget_bytes=20 * GIB, args=["--gpu-memory-utilization", "0.6"],
    )  # fmt: skip
    ModelDefinition.objects.bulk_create([*models, wanted])
    ModelSource.objects.create(model=wanted, folder="qwen3-14b")
    Placement.objects.bulk_create(
        Placement(model=model, node_id_text=nodes[at * 2].pk, gpu_uuids=[gpus[at * 2 * _CARDS].uuid])
        for at, model in enumerate(models)
    )


if __name__ == "__main__":
    import django

    django.setup()
    for figure in _figures():
        print(json.dumps(asdict(figure)), flush=True)
