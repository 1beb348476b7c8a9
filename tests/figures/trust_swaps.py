"""Certificates swapped under continuous handshakes, a tenth of them torn: on an agent and on the enroll listener.

``MIRBAD_TEST_SWAPS`` (50) makes it shorter.
"""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.config import AgentConfig
from agent.identity import AgentIdentityBroken, IdentityStore
from agent.server.serve import Server
from agent.wire.base import API_PREFIX, node_server_name
from tests.agent.core.fleet import UID, Fleet
from tests.bench.services import free_port
from tests.bench.simfleet.agents import probes_of
from tests.bench.simfleet.engines import maker
from tests.bench.simfleet.handshakes import Handshakes
from tests.bench.simfleet.master import SimMaster
from tests.bench.simfleet.plan import Member
from tests.figures.figure import Figure, exactly
from tests.waiting import pause_async

CALLERS = 4
PAUSE_SECONDS = 0.1
_TORN = ("key.pem", "chain.pem")


def measure() -> Iterator[Figure]:
    """One run for each of the two doors."""
    count = int(os.environ.get("MIRBAD_TEST_SWAPS", "50"))
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as text:
        yield from _figures("an agent", count, asyncio.run(_agent(Path(text), count)))
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as text:
        master = SimMaster(Path(text), MIRBAD_ENROLL_RATE_PER_MINUTE="1000000")
        master.make(0, 0, Path(text) / "agents")
        yield from _figures("the enroll listener", count, master.python("-m", "tests.bench.simfleet.swaps", str(count)))


def _figures(door: str, count: int, found: dict[str, Any]) -> Iterator[Figure]:
    torn = sum(number % 10 == 4 for number in range(count))
    name = f"{count} certificate swaps ({torn} torn) of {door}"
    first = f" ({found['failed'][0].replace(', ', '; ')})" if found["failed"] else ""
    yield Figure(
        f"{name}: failed handshakes of {found['good'] + found['cut']}",
        f"{len(found['failed'])}{first}", "0", not found["failed"] and found["good"] > count,
    )  # fmt: skip
    yield exactly(f"{name}: swapped; torn ones that left the old one in use", f"{found['swapped']}; {found['kept']}",
                  f"{count - torn}; {torn}")  # fmt: skip
    yield exactly(f"{name}: certificates seen", found["keys"], count - torn + 1)
    told = f"{found['cut']}"
    yield Figure(
        f"{name}: requests cut because their connection was made with the former key", told, "for reading", True
    )


async def _agent(folder: Path, count: int) -> dict[str, Any]:
    fleet, member = Fleet(), Member("pc-1", "127.0.0.1", free_port(), str(folder))
    store = IdentityStore(folder)
    store.install(fleet.identity(UID))
    config = AgentConfig(state_dir=folder, models_root=folder, bind="127.0.0.1", port=member.port, drain_seconds=0.1)
    server = Server(config, store, probes_of(member), maker(member, []))
    await server.start()
    request = f"GET {API_PREFIX}/info HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    context = fleet.client_context(folder, fleet.master)
    shaken = Handshakes(server.port, context, node_server_name(UID), request)
    ended = asyncio.Event()
    callers = [asyncio.create_task(shaken.keep_on(ended)) for _ in range(CALLERS)]
    swapped = kept = 0
    for number in range(count):
        await pause_async(PAUSE_SECONDS)
        torn = number % 10 == 4
        name = store.replace(fleet.identity(UID))
        if torn:
            # Without an await since the rename: nobody read it yet.
            _tear(folder / "identity" / name / _TORN[number // 10 % 2], fleet, number)
        shaken.swaps += 1
        try:
            swapped += server.take_identity()
        except AgentIdentityBroken:
            kept += torn
    await pause_async(PAUSE_SECONDS)
    ended.set()
    await asyncio.gather(*callers)
    await server.stop()
    return {
        "swapped": swapped, "kept": kept, "good": shaken.good, "cut": shaken.cut, "failed": shaken.failed,
        "keys": len(shaken.keys),
    }  # fmt: skip


def _tear(path: Path, fleet: Fleet, number: int) -> None:
    """Half of a file, or that of another identity."""
    whole = path.read_bytes()
    other = fleet.identity(UID)
    path.chmod(0o600)
    another = other.key_pem if path.name == "key.pem" else other.chain[0].encode()
    path.write_bytes(whole[: len(whole) // 2] if number % 20 == 4 else another)
