"""Damaged signing requests, tokens, JSON and answers of agents against the real readers and writers.

``MIRBAD_TEST_FUZZ`` (20000) makes it shorter.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.simfleet.master import SimMaster
from tests.figures.figure import Figure

_NAMES = {
    "csr": "signing requests",
    "token": "tokens",
    "json": "bodies of enrollments",
    "answer": "answers of agents; what is taken is stored",
}


def measure() -> Iterator[Figure]:
    """One line a part."""
    count = int(os.environ.get("MIRBAD_TEST_FUZZ", "20000"))
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        master = SimMaster(Path(folder))
        master.make(1, 1, Path(folder) / "agents")
        for part, found in master.python("-m", "tests.bench.simfleet.fuzz", str(count)).items():
            unforeseen = found["unforeseen"]
            value = f"{found['refused']} refused; {found['taken']} taken; {len(unforeseen)} unforeseen errors"
            if unforeseen:
                value += f" ({unforeseen[0].replace(', ', '; ')})"
            tried = found["refused"] + found["taken"] + len(unforeseen)
            name = f"{count} damaged {_NAMES[part]}"
            yield Figure(name, value, "0 unforeseen errors", not unforeseen and tried == count)
