"""An agent that starts `inside.py` as an engine, the way it starts every process, and prints what that could do.

Arguments: state folder, weights, a JSON object for `inside.py`, the address of Docker.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from agent.config import AgentConfig
from agent.deliveries import confinement
from agent.deliveries.base import RunSpec
from agent.deliveries.process import ProcessDelivery

_INSIDE = Path(__file__).with_name("inside.py")
SECONDS = 30


async def main(state: str, weights: str, asked: str, docker: str) -> None:
    config = AgentConfig(state_dir=Path(state), docker_host=f"unix://{docker}", engine_paths=(_INSIDE.parent,))
    log = Path(state, "instances", "i1.log")
    log.parent.mkdir(exist_ok=True, mode=0o700)
    spec = RunSpec(
        instance_id="i1", launch_id="l1", env={}, log=log, scratch=Path(state, "engines", "i1"),
        argv=(sys.executable, "-I", str(_INSIDE), json.dumps({**json.loads(asked), "agent": os.getpid()})),
        reads=(Path(weights),), connects=False,
    )  # fmt: skip
    delivery = ProcessDelivery(config)
    handle = await delivery.start(spec)
    async with asyncio.timeout(SECONDS):
        while (await delivery.observe(handle)).running:
            await asyncio.to_thread(time.sleep, 0.05)
    text = await asyncio.to_thread(log.read_text)
    sys.stdout.write(json.dumps({"log": text, "problems": confinement.means(config).problems}) + "\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
