"""Tests wait for what happens: how often one lets time pass instead may only fall."""

import ast
from collections import Counter
from functools import cache

from tests.architecture.source import ROOT, name, tree

# Scripted peers keep a pace, faults fall at a moment that nothing announces, figures measure for a while.
PAUSES = {
    "tests/agent": 5,
    "tests/bench": 8,
    "tests/browser": 1,
    "tests/faults": 2,
    "tests/figures": 13,
    "tests/gateway": 8,
    "tests/jobs": 10,
    "tests/nodes": 2,
    "tests/standins": 2,
}


@cache
def _calls() -> list[tuple[str, ast.Call]]:
    files = [path for path in (ROOT / "tests").rglob("*.py") if ".cache" not in path.parts]
    return [(name(path), node) for path in files for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]


def _is_sleep(call: ast.Call) -> bool:
    """Return whether `call` sleeps; `asyncio.sleep(0)` is a turn of the loop and waits for nothing."""
    a_turn = [ast.unparse(argument) for argument in call.args] == ["0"]
    return ast.unparse(call.func) in {"time.sleep", "asyncio.sleep", "sleep"} and not a_turn


def test_only_waiting_sleeps() -> None:
    sleeping = [f"{file}:{call.lineno}" for file, call in _calls() if _is_sleep(call) and file != "tests/waiting.py"]
    assert not sleeping, f"use tests/waiting.py, or an event: {sleeping}"


def test_pauses_become_fewer() -> None:
    found = Counter(
        "/".join(file.split("/")[:2]) for file, call in _calls() if ast.unparse(call.func) in {"pause", "pause_async"}
    )
    assert found == PAUSES, "wait with `until` or `stays`; when there are fewer, lower the number here"
