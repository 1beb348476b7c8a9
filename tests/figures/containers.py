"""The main job through a Docker Engine, by digest from a registry, on two nodes."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.docker import CannotRun, DockerBench
from tests.e2e.containers import ContainerFleet
from tests.figures.figure import Figure, exactly, under


def measure() -> Iterator[Figure]:
    """Seconds from start to first answer on each node; adoption after a kill."""
    try:
        bench = DockerBench().start()
    except CannotRun as error:
        yield Figure("container by digest on two nodes", f"not measured: {error}", "an answer", False)
        return
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder:
        try:
            with ContainerFleet(Path(folder), bench) as two:
                for model, node in (("here", "local"), ("there", "pc-2")):
                    two.define(model, node)
                    begin = time.monotonic()
                    two.fleet.api("POST", f"models/{model}/start")
                    two.fleet.wait_for_answer(model, 120)
                    name = f"container by digest on {node}: start to first answer (pull included)"
                    yield under(name, time.monotonic() - begin, 60, "s")
                before = two.containers()
                two.restart_agent()
                two.fleet.wait_for_answer("there", 60)
                adopted = sum(two.containers().get(model) == identity for model, identity in before.items())
                yield exactly("containers that outlive a kill -9 of an agent", adopted, 2)
        finally:
            bench.close()
