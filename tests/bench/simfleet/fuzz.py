"""``python -m tests.bench.simfleet.fuzz COUNT``: what strangers and agents may send, damaged, against the real readers.

Prints JSON: for each part how many were refused in the named way, how many were taken, and every unforeseen error.
Agents' answers that are taken are written down by the real writers, too: what is accepted must be storable.
"""

import json
import logging
import random
import sys
from collections.abc import Callable
from copy import deepcopy as copy_of
from functools import partial
from typing import Any

import django
import structlog

NAMED, TAKEN = "refused", "taken"
_HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 2**31, 2**63, 2**64, 10**400, -(2**63) - 1, 1e308, "", "\x00", "a\x00b", "x" * 5000,
    "ы", "\u202e", "<script>", "2026-13-45T99:99:99Z", "0001-01-01T00:00:00+23:59", [], {}, [None], [[[[]]]],
    {"a": None}, "0" * 64, "../../etc", "\\u0000", "\\\\u0000", "NaN", "ready", "exited",
)  # fmt: skip


class Fuzz:
    """The parts, each a function from a random number generator to `NAMED` or `TAKEN`."""

    def __init__(self) -> None:
        from agent.common.keys import new_key
        from agent.identity import make_csr
        from tests.bench.simfleet.bad_requests import enrollment

        self._csr = make_csr(new_key(), "pc-1")
        self._body = enrollment("0123456789abcdef." + "A" * 43, "pc-1", self._csr)

    def csr(self, rng: random.Random) -> str:
        """A signing request with some characters changed, cut or repeated."""
        from nodes.pki.signing_requests import BadRequestToSign, csr_public_key

        try:
            csr_public_key(damaged(self._csr.encode(), rng).decode("latin-1"))
        except BadRequestToSign:
            return NAMED
        return TAKEN

    def token(self, rng: random.Random) -> str:
        """Text in the place of a token."""
        from nodes.enrollment import tokens

        text = damaged(b"0123456789abcdef." + b"A" * 43, rng).decode("latin-1")
        if rng.random() < 0.2:
            text = "".join(chr(rng.randrange(1, 0xD7FF)) for _ in range(rng.randrange(200)))
        return NAMED if tokens.find(text, "192.0.2.1")[0] is None else TAKEN

    def json(self, rng: random.Random) -> str:
        """The body of an enrollment, damaged in its bytes or in its values."""
        from mirbad.kernel.errors import InvalidRequest
        from nodes.enrollment.body import read_enroll_request

        if rng.random() < 0.5:
            body = damaged(self._body, rng)
        else:
            body = json.dumps(twisted(json.loads(self._body), rng)).encode()
        try:
            read_enroll_request(body)
        except InvalidRequest:
            return NAMED
        return TAKEN

    def answer(self, rng: random.Random) -> str:
        """Parse the damaged answer of an agent; one that is accepted is written to the database."""
        from django.db import transaction

        from mirbad.kernel.errors import MirbadError
        from nodes.link import client

        kind, value, write = rng.choice(_answers())
        text = json.dumps(twisted(value, rng) if rng.random() < 0.8 else value)
        body = damaged(text.encode(), rng) if rng.random() < 0.2 else text.encode()
        try:
            # The face that `call` and `events` share.
            read = client._parse(_target(), body, kind)
        except MirbadError:
            return NAMED
        with transaction.atomic():
            write(read)
        return TAKEN


def damaged(data: bytes, rng: random.Random) -> bytes:
    """`data` with some bytes changed, taken out, put in, or cut off."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 8)):
        where = rng.randrange(len(out) + 1)
        what = rng.randrange(4)
        if what == 0 and where < len(out):
            out[where] = rng.randrange(256)
        elif what == 1:
            del out[where : where + rng.randrange(1, 20)]
        elif what == 2:
            out[where:where] = rng.choice(
                (rng.randbytes(3), b"\x00", b"\\u0000", b"\\ud800", b"NaN", b"[" * 50, b"1e999")
            )
        elif rng.random() < 0.1:
            del out[where:]
    return bytes(out)


def twisted(value: Any, rng: random.Random) -> Any:
    """`value` with one or two of its leaves or branches replaced."""
    copy = copy_of(value)
    for _ in range(rng.randrange(1, 3)):
        at = copy
        while isinstance(at, dict | list) and at:
            key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if not isinstance(at[key], dict | list) or not at[key] or rng.random() < 0.2:
                at[key] = copy_of(rng.choice(_HOSTILE))
                break
            at = at[key]
    return copy


_cache: list[tuple[Any, Any, Callable[[Any], Any]]] = []


def _take_status(node_id: str, read: Any) -> None:
    """Store the status twice, each time as the first of its agent: alone, and with those of other nodes."""
    from jobs.loops import reports
    from mirbad.kernel import clock
    from models_app.models import Placement
    from nodes import reachability
    from nodes.models import Node

    Node.objects.update(boot_id="", seq=-1, reachability="online")
    Placement.objects.update(observed_boot="", observed_seq=-1)
    reachability.observe_status(node_id, read)
    Node.objects.update(boot_id="", seq=-1)
    reports.write_strictly({node_id: (read, clock.now())})


def _take_event(node_id: str, read: Any) -> None:
    from models_app import running
    from models_app.models import Placement

    if read.status is not None:
        _take_status(node_id, read.status)
    if read.instance is not None:
        Placement.objects.update(observed_boot="", observed_seq=-1)
        running.observe_instance(node_id, read.boot_id, read.seq, read.instance)


def _answers() -> list[tuple[Any, Any, Callable[[Any], Any]]]:
    if _cache:
        return _cache
    from agent.wire.capability import AgentInfo, Capabilities
    from agent.wire.fence import FenceView
    from agent.wire.instances import InstanceView
    from agent.wire.status import Event, NodeStatus
    from models_app.models import Placement
    from nodes import reachability
    from nodes.models import Node
    from tests.bench.simfleet.agents import capabilities_of
    from tests.bench.simfleet.engines import SimInstances
    from tests.bench.simfleet.plan import Member

    placement = Placement.objects.get()
    node = Node.objects.get(pk=placement.node_id_text)
    member = Member(node.pk, node.address, node.port, "", str(placement.pk), placement.model_id)
    view = SimInstances(member, lambda _: None).views()[0]
    claim = {"epoch": 1, "instanceId": "0123456789abcdef"}
    gpu = {"uuid": f"GPU-{node.pk}-0", "usedBytes": 1, "utilizationPercent": 2.5, "problem": "none"}
    host = {"memoryTotalBytes": 2**37, "cpuPercent": 12.5, "load1M": 1.0, "diskFreeBytes": 2**40}
    status = {
        "bootId": "boot-1", "seq": 5, "capabilitiesSeq": 1, "time": "2026-01-01T00:00:00Z", "heldClaim": claim,
        "host": host, "gpus": [gpu], "instances": [view.to_wire()], "warnings": ["a warning"],
    }  # fmt: skip
    info = {
        "nodeId": node.pk, "nodeUid": str(node.uid), "agentVersion": "1", "protocolVersions": [1], "bootId": "boot-1",
        "heldClaim": claim, "machineIdHash": "ab" * 32, "certNotAfter": "2027-01-01T00:00:00+00:00",
        "spkiSha256": "0" * 64, "trustBundleHash": "0" * 64, "nextSpkiSha256": None, "time": "2026-01-01T00:00:00Z",
    }  # fmt: skip

    take_status, take_event = partial(_take_status, node.pk), partial(_take_event, node.pk)
    event = {"kind": "instance", "bootId": "boot-1", "seq": 6, "status": None, "instance": view.to_wire()}
    whole = {"kind": "status", "bootId": "boot-1", "seq": 5, "status": status, "instance": None}
    _cache.extend(
        (
            (NodeStatus, status, take_status),
            (Event, event, take_event),
            (Event, whole, take_event),
            (AgentInfo, info, lambda read: reachability.observe_info(node.pk, read, 1)),
            (Capabilities, capabilities_of(member).to_wire(), partial(reachability.observe_capabilities, node.pk)),
            (InstanceView, view.to_wire(), lambda read: None),
            (FenceView, {"held": claim}, lambda read: None),
        )
    )
    return _cache


def _target() -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(node_id="sim-0000", host="127.0.0.1", port=1)


def main(count: int) -> None:
    """Run all parts in rows that `rows` made."""
    django.setup()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    logging.disable(logging.CRITICAL)
    fuzz, found = Fuzz(), {}
    for name in ("csr", "token", "json", "answer"):
        rng, part = random.Random(11), {NAMED: 0, TAKEN: 0, "unforeseen": []}
        one: Callable[[random.Random], str] = getattr(fuzz, name)
        for number in range(count):
            try:
                part[one(rng)] += 1
            except Exception as error:  # noqa: BLE001 - what it finds is what this is for
                part["unforeseen"].append(f"{number}: {type(error).__name__}: {str(error)[:200]}")
        found[name] = part
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
