"""The audit log: attacks that are found, and the cost of a line."""

import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.figures.figure import Figure, exactly, under

ATTACKS = 10_000
LINES = 20_000


def measure() -> Iterator[Figure]:
    """Random attacks of every kind, then the time to seal a line."""
    from tests.audit import attacks

    rng = random.Random(2027)
    tried, verified, refused = Counter(), Counter(), Counter()
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-", dir="/dev/shm") as base:
        for number in range(ATTACKS):
            folder = Path(base) / str(number)
            folder.mkdir()
            kind = attacks.KINDS[number % len(attacks.KINDS)]
            finders = attacks.found(kind, rng, folder)
            tried[kind] += 1
            verified[kind] += "verifier" in finders
            refused[kind] += "audit_head_refused" in finders
    for kind in attacks.KINDS:
        yield exactly(f"audit: {kind}, of {tried[kind]} found by the verifier", verified[kind], tried[kind])
        if kind.endswith("keys"):
            yield exactly(f"audit: {kind}, of {tried[kind]} refused by the honest node", refused[kind], tried[kind])
    log = attacks.Log(attacks.new_key())
    rows = [attacks.line(number, rng) for number in range(LINES)]
    peaks: list[bytes] = []
    # Of this process alone: nothing in it waits.
    began = time.process_time()
    for row in rows:
        attacks.seal.append(log.state, peaks, row)
    yield under("audit: chain and tree a line", (time.process_time() - began) / LINES * 1e6, 50, "µs")
