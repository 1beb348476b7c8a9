"""Whatever is done to lines that were signed and witnessed is found, with every key of the master stolen, too."""

import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agent.common import merkle
from audit import chain
from tests.audit import attacks
from tests.audit.attacks import verifier
from tests.inputs import inputs

pytestmark = pytest.mark.unit

EACH = 12


@pytest.mark.parametrize("kind", attacks.KINDS)
def test_an_attack_is_found(kind, tmp_path):
    rng, missed = random.Random(kind), []
    for number in inputs(range(EACH)):
        folder = tmp_path / str(number)
        folder.mkdir()
        if "verifier" not in attacks.found(kind, rng, folder):
            missed.append(number)
    assert missed == []


@pytest.mark.parametrize("kind", [kind for kind in attacks.KINDS if kind.endswith("keys")])
def test_an_honest_node_refuses_what_was_signed_anew(kind, tmp_path):
    rng = random.Random(kind)
    found = Counter()
    for number in inputs(range(EACH)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found.update(attacks.found(kind, rng, folder))
    assert found["audit_head_refused"] == EACH


def test_a_break_that_a_person_knows_is_named_and_no_other(tmp_path):
    rng = random.Random(11)
    before = attacks.build(rng, 9)
    log = attacks.restored(before, 5)
    attacks.append(log)
    left = {"was": before.head().to_wire(), "now": log.head().to_wire(), "line": "why", "time": "2027-01-02T00:00:00Z"}
    view = {"held": log.head().to_wire(), "breaks": [left]}
    root = left["was"]["root"]
    assert verifier.verify(log.lines, log.checkpoint({}), [view], left=[root]).startswith("6 lines, unbroken")
    for known in ((), ("0" * 64,), (log.head().root,)):
        with pytest.raises(verifier.Changed, match=f"witness 1 left a log of 9 lines, root {root}, as decided in why"):
            verifier.verify(log.lines, log.checkpoint({}), [view], left=known)


def test_a_log_that_nobody_changed_is_whole(tmp_path):
    rng = random.Random(1)
    for count in (1, 2, 3, 7, 8, 9, 40):
        log = attacks.build(rng, count)
        keys = {"pc-1": attacks.new_key()}
        checkpoint = log.checkpoint(keys)
        log.append(attacks.line(count, rng))
        views = [{"held": log.head(size).to_wire()} for size in range(count + 2)]
        words = verifier.verify(log.lines, checkpoint, views, attacks.hex_of(log.key), [attacks.hex_of(keys["pc-1"])])
        assert words == f"{count + 1} lines, unbroken; signed and witnessed by 1 nodes, but for the newest 1."


def test_another_key_than_the_known_one_is_found():
    log, keys = attacks.build(random.Random(2), 5), {"pc-1": attacks.new_key()}
    checkpoint, other = log.checkpoint(keys), attacks.hex_of(attacks.new_key())
    for known in ({"log_key": other}, {"node_keys": [other]}):
        with pytest.raises(verifier.Changed):
            verifier.verify(log.lines, checkpoint, **known)


def test_lines_that_retention_deleted_are_not_missed():
    log = attacks.build(random.Random(3), 30)
    for base in (1, 4, 7, 29, 30):
        checkpoint = log.checkpoint({})
        checkpoint["base"] = {
            "seq": base, "hash": log.lines[base - 1]["hash"], "peaks": [peak.hex() for peak in log.peaks[base]],
        }  # fmt: skip
        assert verifier.verify(log.lines[base:], checkpoint).startswith(f"{30 - base} lines, unbroken")
        assert verifier.verify(log.lines, checkpoint).startswith(f"{30 - base} lines, unbroken")
        with pytest.raises(verifier.Changed):
            verifier.verify(log.lines[base:], {**checkpoint, "base": {**checkpoint["base"], "peaks": []}})


def test_a_single_line_is_proved_and_nothing_else_is():
    log = attacks.build(random.Random(4), 21)
    tree = merkle.Tree(0, [], [chain.leaf(line) for line in log.lines])
    assert tree.size == 21
    for number, line in enumerate(log.lines):
        proof = [step.hex() for step in tree.inclusion(number)]
        exported = {"line": line, "proof": proof, **log.checkpoint({})}
        assert verifier.verify_line(exported).startswith(f"Line {number + 1} is under the head of 21 lines")
        for wrong in (
            {"line": {**line, "detail": "x"}}, {"line": {**line, "seq": number + 2}}, {"proof": proof[1:]},
            {"proof": [*proof, "0" * 64]}, {"proof": proof[::-1]}, {"proof": []},
        ):  # fmt: skip
            if {**exported, **wrong} != exported:
                with pytest.raises(verifier.Changed):
                    verifier.verify_line({**exported, **wrong})


def test_the_script_runs_without_mirbad(tmp_path):
    script = tmp_path / "verify_audit.py"
    shutil.copy(attacks._SCRIPT, script)
    assert len(script.read_text().splitlines()) < 200
    log = attacks.build(random.Random(5), 6)
    folder = tmp_path / "audit"
    folder.mkdir()
    (folder / "2027-01.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log.lines[:4]))
    (folder / "2027-01.1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log.lines[4:]))
    (tmp_path / "checkpoint.json").write_text(json.dumps(log.checkpoint({})))

    def run(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-I", str(script), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    code, words = run("audit", "--checkpoint", "checkpoint.json")
    assert (code, words) == (0, "6 lines, unbroken; signed and witnessed by 0 nodes, but for the newest 0.\n")
    Path(folder / "2027-01.1.jsonl").unlink()
    code, words = run("audit", "--checkpoint", "checkpoint.json")
    assert (code, words) == (1, "CHANGED: the checkpoint has seen 6 lines, but the files end at line 4\n")
    (folder / "2027-01.jsonl").write_text("no line\n")
    assert run("audit", "--checkpoint", "checkpoint.json")[0] == 2
    assert run("audit")[0] == 2
