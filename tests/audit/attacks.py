"""A small audit log with its heads, nodes that witness it, and attackers who change it: pure, without a database.

The log is made by the master's own functions, the nodes are the agent's own witnesses. What finds an attack is
``deploy/verify_audit.py`` with the file of one honest node, and that node itself.
"""

import copy
import importlib.util
import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.common import merkle
from agent.errors import AgentError
from agent.wire.witness import ACCEPTING, HEAD_LINE, WITNESS_LINE, AuditHead, BreakRequest, WitnessRequest
from agent.witness import Witness
from audit import chain, seal
from audit.models import AuditLine, ChainState
from audit.queries import document

_SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "verify_audit.py"
_spec = importlib.util.spec_from_file_location("verify_audit", _SCRIPT)
verifier = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(verifier)

KINDS = (
    "edit", "delete", "insert", "reorder", "cut tail", "fork", "rewrite",
    "edit with keys", "delete with keys", "insert with keys", "reorder with keys", "cut tail with keys",
    "fork with keys", "rewrite with keys", "rewrite with keys and a decision", "cut tail with keys and a decision",
)  # fmt: skip
"""With keys: whoever attacks has every key of the master and of every node but one, and signs anew. With a decision:
the attacker writes the line by which an owner has the honest node take the log.
"""


def new_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


def hex_of(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def line(number: int, rng: random.Random) -> AuditLine:
    when = datetime(2027, 1, 1, rng.randrange(24), rng.randrange(60), tzinfo=UTC)
    return AuditLine(
        time=when, actor=f"admin:{rng.randrange(16**12):012x}", person=rng.choice(("", "ada", "brün")), action="job",
        node_id_text=rng.choice(("", "pc-1")), result=rng.choice(("succeeded", "refused")), detail=f"line {number}",
    )  # fmt: skip


@dataclass
class Log:
    """The lines with their tree, the key, and the newest checkpoint."""

    key: Ed25519PrivateKey
    lines: list[dict[str, Any]] = field(default_factory=list)
    peaks: list[list[bytes]] = field(default_factory=lambda: [[]])
    state: ChainState = field(default_factory=lambda: ChainState(head_digest=chain.GENESIS, base_digest=chain.GENESIS))

    def append(self, row: AuditLine) -> None:
        peaks = list(self.peaks[-1])
        seal.append(self.state, peaks, row)
        self.peaks.append(peaks)
        self.lines.append(document(row))

    def head(self, size: int | None = None) -> AuditHead:
        size = len(self.lines) if size is None else size
        digest = self.lines[size - 1]["hash"] if size else chain.GENESIS
        head = AuditHead(
            size=size, root=merkle.root(self.peaks[size]).hex(), chain=digest, time="2027-01-02T00:00:00Z",
            key=hex_of(self.key), signature="0" * 128,
        )  # fmt: skip
        return head.model_copy(update={"signature": self.key.sign((HEAD_LINE + head.text()).encode()).hex()})

    def proof(self, size: int) -> tuple[str, ...]:
        if not 0 < size < len(self.lines):
            return ()
        leaves = [chain.leaf(one) for one in self.lines[size:]]
        return tuple(step.hex() for step in merkle.Tree(size, self.peaks[size], leaves).consistency(size))

    def inclusion(self, seq: int) -> tuple[str, ...]:
        tree = merkle.Tree(0, [], [chain.leaf(one) for one in self.lines])
        return tuple(step.hex() for step in tree.inclusion(seq - 1))

    def checkpoint(self, signers: dict[str, Ed25519PrivateKey]) -> dict[str, Any]:
        head = self.head()
        text = (WITNESS_LINE + head.text()).encode()
        words = {name: {"key": hex_of(key), "signature": key.sign(text).hex()} for name, key in signers.items()}
        return {"head": head.to_wire(), "witnesses": words, "base": {"seq": 0, "hash": chain.GENESIS, "peaks": []}}


def build(rng: random.Random, count: int) -> Log:
    made = Log(new_key())
    for number in range(count):
        made.append(line(number, rng))
    return made


def append(log: Log, **columns: Any) -> int:
    """Append a line with these columns, and return its number."""
    row = line(len(log.lines), random.Random(len(log.lines)))
    for name, value in columns.items():
        setattr(row, name, value)
    log.append(row)
    return len(log.lines)


def restored(log: Log, size: int) -> Log:
    """Return the log as a backup of `size` lines has it, with the same key."""
    state = ChainState(head_digest=log.lines[size - 1]["hash"], head_seq=size, base_digest=chain.GENESIS)
    return Log(log.key, log.lines[:size], log.peaks[: size + 1], state)


def resealed(original: Log, documents: list[dict[str, Any]], key: Ed25519PrivateKey) -> Log:
    """The same lines as `documents`, numbered, chained and signed anew as the master does."""
    made = Log(key)
    for one in documents:
        body = {**one, "seq": len(made.lines) + 1}
        digest = chain.link(made.state.head_digest, body)
        made.state.head_seq, made.state.head_digest = body["seq"], digest
        peaks = list(made.peaks[-1])
        merkle.grow(peaks, len(made.lines), chain.leaf(body))
        made.peaks.append(peaks)
        made.lines.append({**body, "hash": digest})
    return made


def change(kind: str, lines: list[dict[str, Any]], rng: random.Random) -> list[dict[str, Any]]:
    """The lines after an attack of a kind."""
    made = copy.deepcopy(lines)
    at = rng.randrange(len(made))
    if kind == "edit":
        name = rng.choice(("detail", "actor", "result", "time", "action", "nodeId"))
        made[at][name] = f"{made[at][name]}x"
    elif kind == "delete":
        del made[at]
    elif kind == "insert":
        made.insert(at, {**made[at], "detail": "nobody did this"})
    elif kind == "reorder":
        other = (at + 1 + rng.randrange(len(made) - 1)) % len(made)
        made[at], made[other] = made[other], made[at]
    elif kind == "cut tail":
        del made[rng.randrange(len(made)) :]
    elif kind == "fork":
        made = made[:at] + [{**one, "detail": f"{one['detail']}, otherwise"} for one in made[at:]]
    else:
        made = [{**one, "detail": "all is well"} for one in made]
    return made


def _decide(forged: Log, honest: Witness, held: dict[str, Any], log: Log) -> None:
    """Have the honest node take the forged log, as a thief of every key can; its head before must stay."""
    target = AuditHead.model_validate(held).name
    seq = append(
        forged, node_id_text="pc-1", person="ada", role="owner", action=ACCEPTING, result="accepted", target=target
    )
    text = chain.canonical(forged.lines[seq - 1])
    taken = honest._accept(BreakRequest(head=forged.head(), line=text, proof=forged.inclusion(seq)))
    assert taken.held == forged.head()
    assert taken.breaks[0].was == log.head()


def found(kind: str, rng: random.Random, folder: Path) -> list[str]:
    """Attack a log of some lines as `kind` says, and return who finds it."""
    name, _, with_keys = kind.partition(" with ")
    log = build(rng, rng.randrange(2, 24))
    keys = {f"pc-{number}": new_key() for number in range(3)}
    honest = Witness(folder, "pc-1", "uid")
    for size in sorted({rng.randrange(1, len(log.lines) + 1), len(log.lines)}):
        early = Log(log.key, log.lines[:size], log.peaks[: size + 1])
        view = honest._load()
        held = view.held.size if view.held else 0
        honest._take(WitnessRequest(head=early.head(), proof=early.proof(held)))
    view = json.loads((folder / "witness.json").read_text())
    checkpoint = log.checkpoint(keys)
    lines = change(name, log.lines, rng)
    finders = []
    if with_keys:
        forged = resealed(log, lines, rng.choice((log.key, new_key())))
        if with_keys.endswith("decision"):
            _decide(forged, honest, view["held"], log)
            view = json.loads((folder / "witness.json").read_text())
        lines, checkpoint = forged.lines, forged.checkpoint(keys)
        proof = rng.choice((forged.proof(len(log.lines)), log.proof(1), ()))
        try:
            if not with_keys.endswith("decision"):
                honest._take(WitnessRequest(head=forged.head(), proof=proof))
        except AgentError as error:
            finders.append(error.code.value)
    try:
        verifier.verify(lines, checkpoint, [view])
    except verifier.Changed:
        finders.append("verifier")
    return finders
