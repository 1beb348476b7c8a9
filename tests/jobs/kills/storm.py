"""Many operations at once, on real workers that are killed and a database that is restarted. Run by the figures.

It needs PostgreSQL as the test's database, and somebody who restarts it when a file ``restart`` lies in the folder
`MIRBAD_TEST_KILLS_CONTROL`, and who takes the file away when that is done.
"""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from django.db import DatabaseError, InterfaceError, connection

from audit.models import AuditLine
from jobs.models import Operation
from jobs.queries import unfinished
from jobs.requests import model_runs, moves
from mirbad.kernel.errors import MirbadError
from models_app.models import Placement
from nodes.pki import authority
from tests.jobs.kills.bench import Bench
from tests.jobs.processes import BEAT, WORKER, Program, running_broker
from tests.models_app.things import PERSON, placed
from tests.waiting import pause, until, until_no

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

OPERATIONS = 200
MODELS = 40
NODES = ("a", "b", "c", "d")
AT_ONCE = 24
ENDS_BETWEEN_KILLS = 6
T = TypeVar("T")


class Storm:
    """The master's processes, killed and restarted meanwhile."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.control = Path(os.environ["MIRBAD_TEST_KILLS_CONTROL"]) / "restart"
        self.workers = [Program(self._folder(folder, f"w{number}"), redis_url, *WORKER) for number in range(2)]
        self.beat = Program(self._folder(folder, "beat"), redis_url, *BEAT)
        self.kills = self.restarts = 0

    @staticmethod
    def _folder(folder: Path, name: str) -> Path:
        (folder / name).mkdir()
        return folder / name

    def begin(self) -> None:
        for program in (*self.workers, self.beat):
            program.start()

    def end(self) -> None:
        for program in (*self.workers, self.beat):
            program.kill()

    def kill_one(self, chance: random.Random) -> None:
        worker = chance.choice(self.workers)
        worker.kill()
        worker.start()
        self.kills += 1

    def restart_database(self) -> None:
        connection.close()
        self.control.touch()
        until(lambda: not self.control.exists(), "the database to be restarted", 60)
        self.restarts += 1


def patiently(ask: Callable[[], T]) -> T:
    """`ask`, again when the database was away."""

    def attempt() -> T:
        try:
            return ask()
        except (DatabaseError, InterfaceError):
            connection.close()
            raise

    return until_no((DatabaseError, InterfaceError), attempt, 60, every=0.3)


def ask_something(chance: random.Random, nodes: tuple[str, ...]) -> bool:
    """Request something that a person could request of a model now; False when there is nothing."""
    busy = set(unfinished().values_list("model_id_text", flat=True))
    rows = list(Placement.objects.filter(routed=True).exclude(model_id__in=busy))
    if not rows:
        return False
    row = chance.choice(rows)
    verbs: list[Callable[[], Operation]] = [lambda: model_runs.start(row.model_id, PERSON)]
    if row.desired == "running":
        target = chance.choice([node_id for node_id in nodes if node_id != row.node_id_text])
        verbs = [
            lambda: model_runs.stop(row.model_id, PERSON),
            lambda: model_runs.restart(row.model_id, PERSON),
            lambda: moves.request(row.model_id, target, (), PERSON),
            lambda: moves.request(row.model_id, target, (), PERSON, mode="stop-first"),
        ]
    try:
        chance.choice(verbs)()
    except MirbadError:
        return False
    return True


def test_every_operation_is_finished_once(transactional_db, tmp_path) -> None:
    authority.ensure()
    chance = random.Random(20)
    bench = Bench(tmp_path, lambda _: None)
    for node_id in NODES[2:]:
        bench.add(node_id)
    for number in range(MODELS):
        placed(f"m{number:02}", NODES[number % len(NODES)])
    began = time.monotonic()
    with running_broker() as broker:
        storm = Storm(tmp_path, broker.url)
        storm.begin()
        try:
            _blow(storm, chance)
            _wait(storm, chance)
        finally:
            storm.end()
            _report(bench, storm, time.monotonic() - began)
            bench.close()


def _blow(storm: Storm, chance: random.Random) -> None:
    killed_at = 0
    deadline = time.monotonic() + 1500
    while patiently(Operation.objects.count) < OPERATIONS:
        assert time.monotonic() < deadline, "too few operations were taken on"
        if patiently(lambda: unfinished().count()) < AT_ONCE:
            patiently(lambda: ask_something(chance, NODES))
        else:
            pause(0.1)
        ended = patiently(lambda: Operation.objects.filter(finished_at__isnull=False).count())
        if ended >= killed_at + ENDS_BETWEEN_KILLS:
            # By what was done, not by the clock: a slow machine would kill workers before they have begun.
            storm.kill_one(chance)
            killed_at = ended
        asked = patiently(Operation.objects.count)
        if storm.restarts < 2 and asked >= OPERATIONS * (storm.restarts + 1) // 3:
            storm.restart_database()


def _wait(storm: Storm, chance: random.Random) -> None:
    """Two more kills fall while the last ones are done; then all must end."""
    for _ in range(2):
        pause(2)
        storm.kill_one(chance)
    try:
        until(lambda: not patiently(lambda: unfinished().exists()), "all operations to end", 300, every=0.3)
    except AssertionError:
        raise AssertionError(list(unfinished().values("kind", "stage", "progress", "error"))) from None


def _report(bench: Bench, storm: Storm, seconds: float) -> None:
    bench.look()
    rows = list(Operation.objects.all())
    finals = Counter(
        AuditLine.objects.exclude(result__in=("accepted", "refused")).values_list("operation_id_text", flat=True)
    )
    once = sum(row.finished_at is not None and finals[row.pk] == 1 for row in rows)
    keys = [key.split(":")[0] for machine in bench.machines for key in machine.engines.launches]
    wrong = bench.wrongs() + [f"{key} started {count} engines" for key, count in Counter(keys).items() if count > 1]
    told = {
        "operations": len(rows),
        "finished": once,
        "outcomes": dict(Counter(row.outcome for row in rows)),
        "kinds": dict(Counter(row.kind for row in rows)),
        "kills": storm.kills,
        "restarts": storm.restarts,
        "seconds": round(seconds),
        "wrong": len(wrong),
        "wrongs": wrong[:30],
    }
    if report := os.environ.get("MIRBAD_TEST_KILLS_REPORT"):
        Path(report).write_text(json.dumps(told))
    assert (once, wrong) == (len(rows), []), told
