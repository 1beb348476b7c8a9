"""The enroll listener under attack: bad requests from many addresses, and many keys for one token at once.

``MIRBAD_TEST_BAD_ENROLLS`` (10000), ``MIRBAD_TEST_RACES`` (100) and ``MIRBAD_TEST_FLEET_DATABASES``
(``sqlite postgresql``) make it shorter.
"""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from agent.common.keys import new_key
from agent.identity import make_csr
from tests.bench import services
from tests.bench.simfleet.bad_requests import enrollment, http
from tests.bench.simfleet.intruders import Line, stranger
from tests.bench.simfleet.master import SimMaster
from tests.bench.simfleet.site import ADDRESSES, LIMITS, RACERS, Site, bad_requests, changes, race
from tests.figures.figure import Figure, exactly


def measure() -> Iterator[Figure]:
    """One run a database."""
    wanted = os.environ.get("MIRBAD_TEST_FLEET_DATABASES", "sqlite postgresql").split()
    if "sqlite" in wanted:
        yield from _run("SQLite", "")
    if "postgresql" in wanted:
        with services.postgres() as database:
            yield from _run("PostgreSQL", database)


def _run(name: str, database: str) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as text:
        folder = Path(text)
        master = SimMaster(folder, database_url=database, **LIMITS)
        try:
            yield from _figures(name, Site(master, int(os.environ.get("MIRBAD_TEST_RACES", "100"))))
        finally:
            master.close()


def _figures(name: str, site: Site) -> Iterator[Figure]:
    before = site.state()
    outcome, seconds = bad_requests(site, int(os.environ.get("MIRBAD_TEST_BAD_ENROLLS", "10000")))
    total = sum(outcome.statuses.values())
    label = f"{total} bad enrollments from {ADDRESSES} addresses on {name}"
    yield exactly(f"{label}: accepted", outcome.count(200, 299), 0)
    yield exactly(f"{label}: answers 5xx", outcome.count(500, 599), 0)
    yield exactly(f"{label}: tokens burnt and nodes made", changes(before, site.state()), 0)
    yield exactly(f"{label}: tracebacks", site.master.logs().count("Traceback"), 0)
    yield exactly(f"{label}: listeners that live", sum(one.running() for one in site.listeners), 2)
    statuses: Counter[int] = Counter()
    for (_, status), number in outcome.statuses.items():
        statuses[status] += number
    told = " ".join(f"{status or 'closed'}={number}" for status, number in sorted(statuses.items()))
    yield Figure(f"{label}: answers in {seconds:.0f} s", told, "for reading", True)
    yield exactly(f"{name}: open tokens that still enroll afterwards", _still_enroll(site), len(site.made["open"]))
    yield from _races(name, site)


def _still_enroll(site: Site) -> int:
    async def enroll() -> int:
        line, good = Line(site.ports[0], "127.200.0.1", stranger()), 0
        for token, node_id in site.made["open"]:
            status, _ = await line.ask(http(enrollment(token, node_id, make_csr(new_key(), node_id))))
            good += status == 200
        await line.leave()
        return good

    return asyncio.run(enroll())


def _races(name: str, site: Site) -> Iterator[Figure]:
    won, statuses = race(site)
    label = f"{site.races} tokens raced for by {RACERS} keys through 2 listeners on {name}"
    pins = dict(map(tuple, site.state()["pins"]))
    told = " ".join(f"{status or 'closed'}={number}" for status, number in sorted(statuses.items()))
    once = sum(len(keys) == 1 for keys in won.values())
    stored = sum(len(keys) == 1 and pins.get(node_id) == keys[0] for node_id, keys in won.items())
    yield exactly(f"{label}: rounds with exactly one winner", once, site.races)
    yield exactly(f"{label}: rounds in which the winner's key is stored", stored, site.races)
    wanted = f"200={site.races} 403={site.races * (RACERS - 1)}"
    yield exactly(f"{label}: answers", told, wanted)
