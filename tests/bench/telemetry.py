"""``python -m tests.bench.telemetry NODES CARDS``: what the telemetry of a large fleet costs a master, as JSON.

Runs in a master's environment with a database of its own, which it fills.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from statistics import median
from typing import Any

import django

GIB = 2**30
_MODELS = ("qwen3-32b", "gemma-3-27b", "phi-4")


def _status(node_id: str, seq: int, cards: int) -> Any:
    from agent.wire.status import GpuModelUse, GpuProcess, GpuStatus, HostStatus, NodeStatus

    gpus = tuple(
        GpuStatus(
            uuid=f"GPU-{node_id}-{index}", index=index, used_bytes=random.randrange(48 * GIB), total_bytes=48 * GIB,
            utilization_percent=random.uniform(0, 100), temperature_celsius=60.0, power_watts=random.uniform(50, 300),
            power_limit_watts=300.0, process_count=2,
            processes=tuple(GpuProcess(pid=4000 + n, name="python3", used_bytes=GIB, instance_id="i") for n in (1, 2)),
            models=(GpuModelUse(instance_id="i", model_id=random.choice(_MODELS), used_bytes=20 * GIB, measured=True),),
        )
        for index in range(cards)
    )  # fmt: skip
    host = HostStatus(memory_total_bytes=512 * GIB, memory_available_bytes=300 * GIB, cpu_percent=20.0)
    return NodeStatus(boot_id="b", seq=seq, capabilities_seq=1, time="", held_claim=None, host=host, gpus=gpus)


def _timed(call: Callable[[], Any]) -> float:
    begin = time.process_time()
    call()
    return (time.process_time() - begin) * 1000


class Bench:
    """A fleet in rows, and what is asked of it."""

    def __init__(self, nodes: int, cards: int) -> None:
        from nodes.models import Gpu, Node

        self.cards = cards
        self.ids = [f"pc-{number:04}" for number in range(nodes)]
        Node.objects.bulk_create(
            Node(id=pk, address="192.0.2.1", lifecycle="approved", reachability="online") for pk in self.ids
        )
        Gpu.objects.bulk_create(
            Gpu(node_id=pk, uuid=f"GPU-{pk}-{index}", index=index, name="RTX", memory_bytes=48 * GIB)
            for pk in self.ids
            for index in range(cards)
        )
        self.seq = 0

    def words(self, ids: list[str], at: datetime) -> dict[str, Any]:
        self.seq += 1
        return {pk: (_status(pk, self.seq, self.cards), at) for pk in ids}

    def statements(self, ids: list[str], at: datetime) -> int:
        from django.db import connection
        from django.test.utils import CaptureQueriesContext

        from jobs.loops import reports

        words = self.words(ids, at)
        with CaptureQueriesContext(connection) as seen:
            reports.write(words)
        return len(seen)

    def rounds(self, start: datetime, count: int) -> list[float]:
        """A second of a fleet whose nodes report every five: milliseconds of CPU of each write."""
        from jobs.loops import reports

        fifth = len(self.ids) // 5
        spent = []
        for number in range(count):
            ids = self.ids[fifth * (number % 5) :][:fifth]
            words = self.words(ids, start + timedelta(seconds=number))
            spent.append(_timed(lambda words=words: reports.write(words)))  # type: ignore[misc]
        return spent


def measure(nodes: int, cards: int) -> dict[str, float]:
    """All figures."""
    from mirbad import dashboard
    from mirbad.kernel import clock
    from nodes import metrics
    from nodes.models import Node, TelemetrySample
    from nodes.telemetry import history, latest, rollup
    from nodes.telemetry.store import floor

    bench = Bench(nodes, cards)
    minute = floor(clock.now(), timedelta(minutes=1)) - timedelta(minutes=3)
    few = bench.statements(bench.ids[:10], minute)
    many = bench.statements(bench.ids[:250], minute + timedelta(seconds=15))
    spent = bench.rounds(minute + timedelta(seconds=30), 30)
    kept = TelemetrySample.objects.count()
    rolled = _timed(rollup.roll_up_once)
    averaged = TelemetrySample.objects.filter(step=60).count()
    Node.objects.update(status_at=clock.now(), last_seen_at=clock.now())  # as of a fleet that is heard
    sample = TelemetrySample.objects.order_by("-pk").values_list("data", flat=True).first()
    return {
        "few": few,
        "many": many,
        "round_ms": median(spent),
        "round_worst_ms": max(spent),
        "kept": kept,
        "roll_up_ms": rolled,
        "averaged": averaged,
        "sample_bytes": len(json.dumps(sample)),
        "latest_ms": median(_timed(lambda: latest(bench.ids)) for _ in range(3)),
        "history_ms": median(
            _timed(lambda: history.read(bench.ids[0], history.span(None, None, None))) for _ in range(5)
        ),
        "dashboard_ms": median(_timed(lambda: dashboard.read("", "", 1)) for _ in range(3)),
        "metrics_ms": median(_timed(metrics.render) for _ in range(3)),
    }


def main() -> None:
    """Migrate, measure, print."""
    django.setup()
    from django.core.management import call_command

    random.seed(1)
    call_command("migrate", verbosity=0)
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))


if __name__ == "__main__":
    main()
