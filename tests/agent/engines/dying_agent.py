"""An agent that kills itself with SIGKILL at a chosen moment of a launch: run as a script by the tests.

Arguments: state folder, models root, moment. A moment is ``before-save:N`` or ``after-save:N`` (the Nth time that the
record goes to disk), ``before-spawn``, ``after-spawn`` (it runs, nothing knows where), ``ready`` or ``stopping``.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from agent.config import AgentConfig
from agent.deliveries.process import ProcessDelivery
from agent.running import EngineInstances
from agent.running.record import RecordStore
from agent.wire.instances import InstanceState, InstanceView
from tests.agent.engines.conftest import QUICK, spec


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(moment: str) -> None:
    """Make the moment deadly."""
    name, _, number = moment.partition(":")
    count = 0
    save, spawn = RecordStore.save, ProcessDelivery._spawn

    async def deadly_save(self: RecordStore, record: Any) -> None:
        nonlocal count
        count += 1
        if name == "before-save" and count == int(number):
            die()
        await save(self, record)
        if name == "after-save" and count == int(number):
            die()

    def deadly_spawn(self: ProcessDelivery, run_spec: Any) -> Any:
        if name == "before-spawn":
            die()
        handle = spawn(self, run_spec)
        if name == "after-spawn":
            die()
        return handle

    RecordStore.save = deadly_save  # type: ignore[method-assign]
    ProcessDelivery._spawn = deadly_spawn  # type: ignore[method-assign]


async def main(state: str, models: str, moment: str) -> None:
    is_ready = asyncio.Event()

    def changed(view: InstanceView) -> None:
        if view.state is InstanceState.READY:
            is_ready.set()

    config = AgentConfig(state_dir=Path(state), models_root=Path(models), nvidia_smi="no-nvidia-smi-here")
    instances = EngineInstances(config, "f" * 16, changed, node="n1")
    instances._context.intervals = QUICK
    arm(moment)
    await instances.recover()
    await instances.launch("i1", "op1", spec(args=("--start-seconds", "0.2", "--ignore-sigterm")))
    await is_ready.wait()
    if moment == "stopping":
        await instances.stop("i1", 0.5)
    die()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
