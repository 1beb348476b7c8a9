"""`make mutants`: the score of each module, and the mutants that no test noticed.

``python -m tests.mutants [MODULE …] [--all] [--again]``. A module with many mutants is sampled, always alike; `--all`
runs every one. What was killed is remembered in build/mutants until its module changes, survivors are run again;
`--again` forgets. An interrupted run goes on where it was.
"""

import argparse
import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path

from tests.mutants import engine, values
from tests.mutants.explained import EXPLAINED
from tests.mutants.table import TARGETS, Target

SAMPLED_OVER = 150
SAMPLE = 60
SEED = 9
STORE = engine.ROOT / "build" / "mutants"


def _sample(target: Target, mutants: list[str], every: bool) -> list[str]:
    if every or len(mutants) <= SAMPLED_OVER:
        return mutants
    return sorted(random.Random(f"{SEED} {target.name}").sample(sorted(mutants), SAMPLE))


def _remembered(target: Target, again: bool) -> tuple[Path, str, dict[str, dict[str, str]]]:
    store = STORE / f"{target.name}.json"
    source = hashlib.sha256((engine.ROOT / target.module).read_bytes()).hexdigest()
    if store.exists() and not again:
        kept = json.loads(store.read_text())
        if kept["source"] == source:
            return store, source, kept["mutants"]
    return store, source, {}


def measure(target: Target, every: bool, again: bool) -> dict[str, dict[str, str]]:
    """Run the mutants of `target` that are not known to be killed; return all of the sample, by name."""
    store, source, known = _remembered(target, again)
    folder = STORE / target.name
    runner = values if target.values else engine
    engine.prepare(folder, target)
    everything = runner.names(folder, target)
    mutants = _sample(target, everything, every)
    killed = {name: result for name, result in known.items() if result["status"] in engine.KILLED and name in mutants}
    rest = [name for name in mutants if name not in killed]
    try:
        if rest and runner.run(folder, rest):
            print(f"{target.name}: mutmut failed, see {folder / 'output'}")
    finally:
        found = runner.outcomes(folder, target)
        survivors = [name for name in rest if found.get(name, "killed") not in engine.KILLED]
        words = runner.changes(folder, target, survivors) if survivors else {}
        results = killed | {
            name: {"status": found[name], "change": words.get(name, "")} for name in rest if name in found
        }
        store.write_text(json.dumps({"source": source, "of": len(everything), "mutants": results}, indent=1))
    return results


def report(target: Target, results: dict[str, dict[str, str]], seconds: float) -> bool:
    """Print the line of `target` and its unexplained survivors; return whether there are none."""
    reasons = EXPLAINED.get(target.module, {})
    alive = {name: one for name, one in results.items() if one["status"] not in engine.KILLED}
    explained = [name for name, one in alive.items() if one["change"] in reasons]
    total = len(results) - len(explained)
    score = f"{100 * (total - len(alive) + len(explained)) / total:.0f} %" if total else "no mutants"
    of = json.loads((STORE / f"{target.name}.json").read_text())["of"]
    sampled = f" of {of}" if of != len(results) else ""
    print(
        f"{target.module}: {score}, {len(alive) - len(explained)} of {len(results)}{sampled} alive,"
        f" {len(explained)} explained ({seconds:.0f} s)",
        flush=True,
    )
    for name in sorted(set(alive) - set(explained)):
        print(f"  {name} ({alive[name]['status']})\n    " + alive[name]["change"].replace("\n", "\n    "))
    return len(alive) == len(explained)


def main(arguments: list[str]) -> int:
    """Run the modules that `arguments` name, all without any; return 0 when every survivor is explained."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("modules", nargs="*", help="such as jobs/ledger.py, or a part of it")
    parser.add_argument("--all", action="store_true", help="every mutant instead of a sample")
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    wanted = parser.parse_args(arguments)
    targets = [one for one in TARGETS if not wanted.modules or any(part in one.module for part in wanted.modules)]
    if not targets:
        parser.error(f"none of these: {', '.join(one.module for one in TARGETS)}")
    os.nice(19)
    clean = True
    for target in targets:
        started = time.monotonic()
        results = measure(target, wanted.all, wanted.again)
        clean &= report(target, results, time.monotonic() - started)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
