"""A node of eight cards that are not there, read by the agent's own code from a fake driver, and its last day."""

import json
import math
import os
import random
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from agent.telemetry.usage import attribute
from agent.wire.capability import Capabilities, Delivery, Runtime
from agent.wire.instances import InstanceState, InstanceView
from agent.wire.status import GpuStatus, HostStatus, NodeStatus
from jobs.loops import reports
from mirbad.kernel import bulk, clock
from models_app.models import ModelDefinition
from nodes import reachability
from nodes.models import Gpu, Node, TelemetryProgress, TelemetrySample
from nodes.telemetry import values
from nodes.telemetry.store import floor
from tests.bench.gpus import Machine
from tests.pages import seed

GIB = 2**30
ROOT = Path(__file__).resolve().parents[2]
NODE = "octo"
_READ = """
import asyncio, json, sys
from pathlib import Path
from agent.capability import read_capabilities
from agent.config import AgentConfig
from agent.telemetry import gpu
gpu._PCI_DEVICES = Path(sys.argv[1])
config = AgentConfig(state_dir=Path(sys.argv[2]), models_root=Path(sys.argv[2]), nvidia_smi="no-such-smi")
async def main():
    await read_capabilities(config)
    print("read", flush=True)
    input()
    found = await read_capabilities(config)
    print(json.dumps([found.to_wire(), [one.to_wire() for one in await gpu.gpu_statuses(config.nvidia_smi)]]))
asyncio.run(main())
"""
_ENGINES = {"qwen3-32b": 3100, "qwen3-14b": 3300, "gemma-3-27b": 3500, "phi-4-mini": 4000, "embedder": 4002}


def _card(number: int, **changes: object) -> dict[str, object]:
    used = (21, 47, 12, 0, 0, 44, 3, 30)[number] * GIB
    return {
        "uuid": f"GPU-8f2c41d0-77{number}a-4be1-9d5e-0c1d2e3f4a5{number}", "name": "NVIDIA RTX 6000 Ada Generation",
        "bus": f"00000000:{0x21 + number * 0x10:02X}:00.0", "lanes": 16, "total": 48 * GIB, "used": used,
        "compute": "8.9", "utilization": (37, 92, 64, 0, 0, 88, 5, 41)[number], "temperature": 41 + 4 * number,
        "power": 61_000 + 24_000 * number, "limit": 300_000, "processes": "", "graphics": "",
    } | changes  # fmt: skip


def _slices() -> dict[str, object]:
    told: dict[str, object] = {"mig": 1, "slices": 7, "name": "NVIDIA A100-PCIE-40GB", "compute": "8.0"}
    for place, profile, size, used in ((0, "3g.20gb", 20, 11), (2, "2g.10gb", 10, 2)):
        told |= {
            f"s{place}.uuid": f"MIG-3b9e1c52-0{place}f4-5d2a-8c7e-6a5b4c3d2e1f",
            f"s{place}.name": f"NVIDIA A100-PCIE-40GB MIG {profile}",
            f"s{place}.total": size * GIB, f"s{place}.used": used * GIB,
            f"s{place}.processes": f"{4000 + place}:{used * GIB}",
        }  # fmt: skip
    return told


def _cards() -> list[dict[str, object]]:
    cards = [_card(number) for number in range(8)]
    cards[0] |= {"processes": "!3", "graphics": "!3"}
    cards[1] |= {"processes": f"3101:{30 * GIB},3102:{16 * GIB},2200:{GIB // 4}"}
    cards[2] |= {"processes": f"3300:{12 * GIB}"}
    cards[4] |= _slices()
    cards[5] |= {"processes": f"3500:{30 * GIB},3301:{13 * GIB}"}
    cards[6] |= dict.fromkeys(("total", "power", "utilization", "processes", "graphics"), "!4")
    cards[7] |= {"processes": f"2300:{29 * GIB}"}
    return cards


def read_machine(folder: Path, instances: dict[str, str]) -> tuple[Capabilities, tuple[GpuStatus, ...]]:
    """Return an agent's readings: a lost card, a slow link, a card in slices, one that tells hardly anything."""
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(folder, patch)
        fake = machine.library()
        fake.cards(*_cards())
        for number in range(8):
            machine.slot(f"0000:{0x21 + number * 0x10:02x}:00.0", lanes=4 if number == 2 else 16)
        root = folder / "models"
        root.mkdir()
        with subprocess.Popen(
            [sys.executable, "-c", _READ, str(machine.devices), str(root)],
            cwd=ROOT, env={**os.environ, **fake.env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as agent:  # fmt: skip
            assert agent.stdin is not None and agent.stdout is not None  # noqa: PT018
            assert agent.stdout.readline() == "read\n"
            cards = _cards()
            cards[3] = {"handle": "!15"}
            fake.cards(*cards)
            output, _ = agent.communicate("\n")
        machine.close()
    capabilities, statuses = json.loads(output)
    told = tuple(GpuStatus.model_validate(one) for one in statuses)
    return Capabilities.model_validate(capabilities), attribute(told, _views(instances), _proc(folder / "proc"))


def _views(instances: dict[str, str]) -> list[InstanceView]:
    """The engines by model; `instances` are their ids."""
    cards = {"qwen3-32b": [0, 1]}
    return [
        InstanceView(
            instance_id=instances[model], model_id=model, generation=1, config_hash="0" * 64, operation_id="op",
            runtime=Runtime.VLLM, delivery=Delivery.PROCESS, state=InstanceState.READY, pid=pid,
            gpu_uuids=tuple(str(_card(number)["uuid"]) for number in cards.get(model, ())),
        )
        for model, pid in _ENGINES.items()
    ]  # fmt: skip


def _proc(folder: Path) -> Path:
    """Processes of the engines and of others, as the kernel lists them."""
    rows = [(pid, 1, pid, "python3") for pid in _ENGINES.values()]
    rows += [(3101, 3100, 3100, "VLLM::Worker_0"), (3102, 3100, 3100, "VLLM::Worker_1"), (3301, 3300, 3300, "python3")]
    rows += [(2200, 1, 2200, "Xorg"), (2300, 1, 2300, "blender")]
    for pid, parent, session, name in rows:
        place = folder / str(pid)
        place.mkdir(parents=True)
        (place / "stat").write_text(f"{pid} ({name}) S {parent} {pid} {session} 0")
    return folder


def octo() -> Node:
    """The node, its models and a day of its history, with an hour in which it was away."""
    now = clock.now()
    node = seed.node(NODE, "Octo")
    instances = {}
    for model in _ENGINES:
        definition = seed.model(f"{model}-octo" if ModelDefinition.objects.filter(pk=model).exists() else model, NODE)
        instances[model] = str(seed.seen(definition.pk, "ready").pk)
    with tempfile.TemporaryDirectory(prefix="mirbad-cards-") as folder:
        capabilities, statuses = read_machine(Path(folder), instances)
    told = capabilities.model_copy(
        update={
            "os": "Ubuntu 24.04.3 LTS", "arch": "x86_64", "hostname": NODE, "cpu_count": 64, "memory_bytes": 512 * GIB,
            "runtimes": Capabilities.model_validate(node.capabilities).runtimes,
            "warnings": tuple(one for one in capabilities.warnings if "models root" not in one),
        }
    )  # fmt: skip
    reachability.observe_capabilities(NODE, told, 1)
    Gpu.objects.filter(node=node, index=1).update(reserve_bytes=2 * GIB)
    reports.write({NODE: (_status(told, statuses, instances), now)})
    _history(_status(told, statuses, instances), now)
    return Node.objects.get(pk=NODE)


def _status(told: Capabilities, statuses: tuple[GpuStatus, ...], instances: dict[str, str]) -> NodeStatus:
    host = HostStatus(
        memory_total_bytes=512 * GIB, memory_available_bytes=381 * GIB, cpu_percent=18.4, load_1m=9.2,
        disk_free_bytes=1400 * GIB, disk_total_bytes=3600 * GIB,
    )  # fmt: skip
    return NodeStatus(
        boot_id="boot", seq=1, capabilities_seq=1, time="", held_claim=None, host=host, gpus=statuses,
        instances=tuple(_views(instances)), warnings=told.warnings,
    )  # fmt: skip


def _history(status: NodeStatus, now: datetime) -> None:
    random.seed(8)
    minute = timedelta(minutes=1)
    begin = floor(now, minute) - timedelta(hours=26)
    rows = []
    for number in range(26 * 60):
        at = begin + number * minute
        if 5 * 60 < number < 6 * 60:
            continue  # the machine was off
        gpus = tuple(_wave(one, number) for one in status.gpus)
        sample = values.sample_of(status.model_copy(update={"gpus": gpus}))
        rows.append((NODE, 60, at, *values.average([(4, sample)])))
    bulk.insert_new(TelemetrySample, ("node_id_text", "step", "at", "samples", "data"), rows)
    TelemetryProgress.objects.update_or_create(pk=60, defaults={"until": floor(now, minute)})


def _wave(status: GpuStatus, minute: int) -> GpuStatus:
    busy = status.utilization_percent
    index = status.index or 0
    share = 0.55 + 0.45 * math.sin(minute / 170 + index) if busy else 1.0
    noise = random.uniform(0.85, 1.15)
    running = minute > 300 + 90 * index  # models were started one after another
    return status.model_copy(
        update={
            "utilization_percent": None if busy is None else min(100.0, max(0.0, busy * share * noise)),
            "power_watts": None if status.power_watts is None else status.power_watts * (0.6 + 0.4 * share * noise),
            "models": status.models if running else (),
            "used_bytes": status.used_bytes if running else status.used_bytes and GIB // 2,
        }
    )
