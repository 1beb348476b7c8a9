"""``python -m tests.bench.simfleet.agents PLAN``: serve every agent of a plan in this process, until SIGTERM.

Says ``ready`` on its output when all of them listen.
"""

import asyncio
import logging
import random
import resource
import signal
import sys
from pathlib import Path

from agent.config import AgentConfig
from agent.identity import IdentityStore
from agent.server.serve import Server
from agent.server.status import Probes
from agent.wire.capability import Capabilities, Feature, GpuCapability, MemoryModel
from agent.wire.status import GpuStatus, HostStatus
from tests.bench.simfleet.engines import SimInstances, maker
from tests.bench.simfleet.plan import Member, read
from tests.waiting import pause_async

GIB = 2**30
GPUS = 2
CHANGE_SECONDS = 60.0
"""Average seconds between two changes of one engine."""


def _uuid(member: Member, index: int) -> str:
    return f"GPU-{member.node_id}-{index}"


def capabilities_of(member: Member) -> Capabilities:
    """A machine with two cards."""
    cards = tuple(
        GpuCapability(
            uuid=_uuid(member, index),
            index=index,
            name="NVIDIA GeForce RTX 4090",
            memory_bytes=24 * GIB,
            shares_host_memory=False,
            compute_capability="8.9",
            driver_version="550.54.14",
        )
        for index in range(GPUS)
    )
    return Capabilities(
        os="Debian 12",
        arch="x86_64",
        hostname=member.node_id,
        cpu_count=32,
        memory_bytes=128 * GIB,
        memory_model=MemoryModel.DISCRETE,
        memory_model_reason="2 GPUs with memory of their own",
        gpus=cards,
        runtimes=(),
        features=(Feature.GPUS_UUIDS, Feature.DELIVERY_PROCESS, Feature.PKI_ROTATE),
        folders=(),
        models_root="/srv/mirbad/models",
        allow_tag_pulls=False,
    )


def probes_of(member: Member) -> Probes:
    """Return the probes of a machine at work: no two readings are alike."""

    async def host() -> HostStatus:
        return HostStatus(
            memory_total_bytes=128 * GIB,
            memory_available_bytes=random.randrange(128 * GIB),
            cpu_percent=random.uniform(0, 100),
            load_1m=random.uniform(0, 32),
            disk_free_bytes=random.randrange(2**40),
            disk_total_bytes=2**40,
        )

    async def gpus() -> tuple[GpuStatus, ...]:
        return tuple(
            GpuStatus(
                uuid=_uuid(member, index),
                used_bytes=random.randrange(24 * GIB),
                total_bytes=24 * GIB,
                utilization_percent=random.uniform(0, 100),
                temperature_celsius=random.uniform(30, 90),
                power_watts=random.uniform(20, 450),
            )
            for index in range(GPUS)
        )

    async def capabilities() -> Capabilities:
        return capabilities_of(member)

    return Probes(host=host, gpus=gpus, capabilities=capabilities)


async def _start(member: Member, engines: list[SimInstances]) -> Server:
    folder = Path(member.folder)
    config = AgentConfig(state_dir=folder, models_root=folder, bind=member.address, port=member.port, drain_seconds=0.1)
    server = Server(config, IdentityStore(folder), probes_of(member), maker(member, engines))
    await server.start()
    return server


async def _change(engines: list[SimInstances]) -> None:
    busy = [one for one in engines if one.has_instance]
    while busy:
        await pause_async(CHANGE_SECONDS / len(busy) * random.uniform(0.5, 1.5))
        random.choice(busy).change()


async def serve(members: tuple[Member, ...]) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    engines: list[SimInstances] = []
    servers = []
    for member in members:
        servers.append(await _start(member, engines))
        # Agents of different machines do not report in step.
        await pause_async(random.uniform(0, 0.005))
    changes = asyncio.create_task(_change(engines))
    print("ready", flush=True)
    await stop.wait()
    changes.cancel()
    await asyncio.gather(*(server.stop() for server in servers))


def main() -> None:
    """The process."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    random.seed()
    asyncio.run(serve(read(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
