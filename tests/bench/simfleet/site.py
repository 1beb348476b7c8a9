"""A master with two enroll listeners under attack, and what the attack could have changed."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from agent.common.keys import new_key, spki_of
from agent.identity import make_csr
from tests.bench.services import free_port
from tests.bench.simfleet.bad_requests import Intruder, Tokens, enrollment, http
from tests.bench.simfleet.intruders import Line, Outcome, attack, source_of, stranger
from tests.bench.simfleet.master import Process, SimMaster
from tests.waiting import until

ADDRESSES = 600
RACERS = 32
LIMITS = {"MIRBAD_ENROLL_RATE_PER_MINUTE": "1000000", "MIRBAD_ENROLL_GLOBAL_RATE_PER_MINUTE": "100000000"}
"""Settings that let an attack through to what is behind the limits."""

_MAKE = """
from datetime import timedelta
from mirbad.kernel import clock
from mirbad.kernel.actor import admin
from nodes import registry
from nodes.enrollment import join, tokens
from nodes.models import JoinToken, Node
from agent.identity import make_csr, new_key, spki_of
from agent.wire.enroll import EnrollRequest
who = admin("figures")
def make(name, count, **also):
    return [(tokens.create(f"{name}-{n}", actor=who, **also).token, f"{name}-{n}") for n in range(count)]
def enroll(made):
    for token, node_id in made:
        key = new_key()
        csr = make_csr(key, node_id)
        join.enroll(EnrollRequest(node_id=node_id, token=token, csr_pem=csr, address="192.0.2.4"), "192.0.2.9")
        registry.approve(node_id, spki_of(key), who)
found = {"open": make("open", 20), "expired": make("expired", 5), "withdrawn": make("withdrawn", 5)}
JoinToken.objects.filter(node_id_text__startswith="expired").update(expires_at=clock.now() - timedelta(seconds=1))
for _, node_id in found["withdrawn"]:
    tokens.withdraw(node_id, who)
found["used"] = make("used", 5)
enroll(found["used"])
rekeyed = make("rekey", 5)
enroll(rekeyed)
found["rekey"] = make("rekey", 5, purpose="rekey")
found["race"] = make("race", RACES)
print(json.dumps(found))
"""
_STATE = """
from nodes.models import JoinToken, Node, NodePin
print(json.dumps({
    "tokens": sorted((t.pk, t.used_by_spki, t.expires_at.isoformat()) for t in JoinToken.objects.all()),
    "nodes": Node.objects.count(),
    "pins": sorted(NodePin.objects.values_list("node_id", "spki_sha256")),
}))
"""


@dataclass
class Site:
    """A master with two enroll listeners, each a process of its own on the same database, and tokens of every kind."""

    master: SimMaster
    races: int
    ports: list[int] = field(default_factory=list)
    listeners: list[Process] = field(default_factory=list)
    made: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.master.make(0, 0, self.master.folder / "agents")
        self.made = self.master.inside(_MAKE.replace("RACES", str(self.races)))
        for number in range(2):
            port = free_port()
            environ = {"MIRBAD_ENROLL_PORT": str(port)}
            self.listeners.append(self.master.start(f"enroll-{number}", "manage.py", "enroll_listener", **environ))
            self.ports.append(port)
        for port in self.ports:
            until(lambda port=port: _listens(port), "a listener", 60)  # type: ignore[misc]

    @property
    def tokens(self) -> Tokens:
        """The tokens that intruders know of."""
        names = ("open", "expired", "withdrawn", "used", "rekey")
        return Tokens(**{name: tuple((token, node) for token, node in self.made[name]) for name in names})

    def state(self) -> Any:
        """Return the state that an enrollment could have changed."""
        return self.master.inside(_STATE)


def _listens(port: int) -> bool:
    async def knock() -> None:
        line = Line(port, "127.0.0.1", stranger())
        await line.ask(http(b"{}"))
        await line.leave()

    with suppress(OSError):
        asyncio.run(knock())
        return True
    return False


def bad_requests(site: Site, count: int) -> tuple[Outcome, float]:
    """Send `count` bad requests to the first listener; what came back, and the seconds it took."""
    intruder = Intruder(site.tokens, seed=7)
    requests = [intruder.next() for _ in range(count)]
    began = time.monotonic()
    outcome = asyncio.run(attack(site.ports[0], requests, addresses=min(ADDRESSES, count), at_once=48))
    return outcome, time.monotonic() - began


def changes(before: Any, after: Any) -> int:
    """Return the number of tokens, nodes and keys that differ."""
    tokens = len({*map(tuple, before["tokens"])} ^ {*map(tuple, after["tokens"])})
    pins = len({*map(tuple, before["pins"])} ^ {*map(tuple, after["pins"])})
    return tokens + pins + abs(before["nodes"] - after["nodes"])


def race(site: Site) -> tuple[dict[str, list[str]], Counter[int]]:
    """All rounds: the keys that won each node, and how often each status came."""
    won: dict[str, list[str]] = {node_id: [] for _, node_id in site.made["race"]}
    statuses: Counter[int] = Counter()

    async def run() -> None:
        lines = [Line(site.ports[n % 2], source_of(n), stranger()) for n in range(RACERS)]
        for token, node_id in site.made["race"]:
            keys = [new_key() for _ in lines]
            requests = [http(enrollment(token, node_id, make_csr(key, node_id))) for key in keys]
            # Connected first, so that the requests and not the handshakes race.
            await asyncio.gather(*(line.ask(http(b"{}")) for line in lines))
            answers = await asyncio.gather(*(line.ask(data) for line, data in zip(lines, requests, strict=True)))
            statuses.update(status for status, _ in answers)
            won[node_id] += [spki_of(key) for key, (status, _) in zip(keys, answers, strict=True) if status == 200]
        await asyncio.gather(*(line.leave() for line in lines))

    asyncio.run(run())
    return won, statuses
