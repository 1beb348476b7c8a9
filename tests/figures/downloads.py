"""Real downloads from a hub on this machine, by ``make up`` and its API: cut, killed, resumed, verified, gated."""

import hashlib
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.hub import Hub, Repository
from tests.e2e.fleet import Fleet
from tests.figures.figure import Figure, exactly
from tests.waiting import until

_MIB = 1024 * 1024
_SIZE = 96 * _MIB
_TOKEN = "hf_" + "a" * 34


def measure() -> Iterator[Figure]:
    """One fleet and one hub for all."""
    with tempfile.TemporaryDirectory(prefix="mirbad-figure-") as folder, Hub() as hub:
        fleet = Fleet(Path(folder), HF_ENDPOINT=hub.endpoint)
        try:
            fleet.start()
            yield from _cut(fleet, hub)
            yield from _killed(fleet, hub)
            yield from _gated(fleet, hub)
            yield _pickle(fleet, hub)
        finally:
            fleet.close()


def _weights(seed: int) -> bytes:
    return random.Random(seed).randbytes(_SIZE)


def _add(hub: Hub, name: str, seed: int, **changes: Any) -> Repository:
    return hub.add(Repository(name, {"config.json": b"{}", "model.safetensors": _weights(seed)}, **changes))


def _over(fleet: Fleet, operation: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = until(
        lambda: (row := fleet.api("GET", f"operations/{operation['id']}"))["outcome"] != "open" and row,
        seconds=180,
        what="the download",
    )
    return found


def _is_whole(fleet: Fleet, found: Repository) -> bool:
    path = fleet.data / "agent" / "models" / found.name.replace("/", "--") / "model.safetensors"
    return hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(found.files["model.safetensors"]).digest()


def _resumed_at(hub: Hub) -> int:
    ranges = [seen.range for seen in hub.of("store") if seen.range]
    return int(ranges[-1].removeprefix("bytes=").rstrip("-")) if ranges else 0


def _cut(fleet: Fleet, hub: Hub) -> Iterator[Figure]:
    found = _add(hub, "acme/cut", 1)
    hub.faults.cut_after, hub.faults.cuts = _SIZE // 2, 1
    begin = time.monotonic()
    done = _over(fleet, fleet.api("POST", "downloads", {"repository": found.name}))
    took = time.monotonic() - begin
    at = _resumed_at(hub)
    value = f"resumed at {at / _MIB:.0f} of {_SIZE // _MIB} MiB; {done['outcome']} and verified in {took:.1f} s"
    good = done["outcome"] == "succeeded" and 0 < at <= _SIZE // 2 and _is_whole(fleet, found)
    yield Figure("download cut at half", value, "resumed where it was cut; verified", good)
    fetched = _SIZE - at + _SIZE // 2
    again = (fetched - _SIZE) / _SIZE * 100
    yield Figure("bytes fetched twice after the cut", f"{again:.1f} %", "under 10 %", again < 10)


def _killed(fleet: Fleet, hub: Hub) -> Iterator[Figure]:
    found = _add(hub, "acme/killed", 2)
    hub.seen.clear()
    hub.faults.bytes_per_second = 24e6
    asked = fleet.api("POST", "downloads", {"repository": found.name})
    until(
        lambda: (fleet.api("GET", f"operations/{asked['id']}")["progress"].get("doneBytes") or 0) > _SIZE // 2,
        seconds=60,
        what="half of it",
    )
    os.kill(fleet.pid("agent"), signal.SIGKILL)
    hub.faults.bytes_per_second = None
    done = _over(fleet, asked)
    at = _resumed_at(hub)
    value = f"{done['outcome']}; resumed at {at / _MIB:.0f} of {_SIZE // _MIB} MiB"
    good = done["outcome"] == "succeeded" and at >= _SIZE // 3 and _is_whole(fleet, found)
    yield Figure("kill -9 of the agent in a download", value, "succeeded; resumed past a third; verified", good)


def _gated(fleet: Fleet, hub: Hub) -> Iterator[Figure]:
    found = _add(hub, "acme/gated", 3, gated=True, allowed={_TOKEN})
    hub.seen.clear()
    refused = _refusal(fleet, {"repository": found.name})
    yield exactly("gated repository without a token", refused, "403 gated")
    done = _over(fleet, fleet.api("POST", "downloads", {"repository": found.name, "hfToken": _TOKEN}))
    value = f"{done['outcome']}; verified" if _is_whole(fleet, found) else done["outcome"]
    yield exactly("gated repository with a token", value, "succeeded; verified")
    strangers = sum(seen.token is not None for seen in hub.of("store"))
    kept = sum(_TOKEN.encode() in path.read_bytes() for path in fleet.data.rglob("*") if path.is_file())
    yield exactly("token seen by another host; files of the data folder with it", f"{strangers}; {kept}", "0; 0")


def _pickle(fleet: Fleet, hub: Hub) -> Figure:
    hub.add(Repository("acme/pickle", {"pytorch_model.bin": b"x" * _MIB}))
    hub.seen.clear()
    refused = _refusal(fleet, {"repository": "acme/pickle"})
    return exactly("pickle; bytes of it fetched", f"{refused}; {len(hub.of('store'))}", "422 pickle_refused; 0")


def _refusal(fleet: Fleet, body: dict[str, Any]) -> str:
    headers = {"Authorization": f"Bearer {fleet.token}"}
    status, _, answer = fleet.request("POST", "/api/downloads", body, headers=headers)
    return f"{status} {json.loads(answer)['code']}"
