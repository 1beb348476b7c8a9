"""The agent as a witness: it signs what continues the head that it holds, and nothing else, across restarts."""

import json
import random
from pathlib import Path

import pytest

from agent import witness_status
from agent.common.keys import verifies
from agent.errors import AgentError
from agent.wire.errors import AgentCode
from agent.wire.witness import (
    ACCEPTING,
    HEAD_LINE,
    MAX_BREAKS,
    WITNESS_LINE,
    AuditHead,
    BreakRequest,
    WitnessRequest,
)
from agent.witness import Witness
from audit import chain
from tests.agent.core.conftest import Master
from tests.audit import attacks

pytestmark = pytest.mark.unit


def request(log: attacks.Log, size: int, held: int) -> WitnessRequest:
    part = attacks.Log(log.key, log.lines[:size], log.peaks[: size + 1])
    return WitnessRequest(head=part.head(), proof=part.proof(held))


async def test_each_head_that_continues_the_last_is_signed_and_kept(tmp_path: Path) -> None:
    log = attacks.build(random.Random(1), 20)
    held = 0
    for size in (1, 2, 2, 7, 8, 16, 20):
        # Begun anew each time: what it holds is on disk.
        view = await Witness(tmp_path, "pc-1", "uid").witness(request(log, size, held))
        assert view.held is not None
        assert view.held.size == size
        held = size
        assert verifies(view.key, view.signature or "", WITNESS_LINE + view.held.text())
        assert not verifies(view.key, view.signature or "", HEAD_LINE + view.held.text())
        assert await Witness(tmp_path, "pc-1", "uid").view() == view
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("witness.json", "witness.key")} == {0o600}


async def test_what_does_not_continue_it_is_refused_and_kept_for_good(tmp_path: Path) -> None:
    rng = random.Random(2)
    log = attacks.build(rng, 12)
    witness = Witness(tmp_path, "pc-1", "uid")
    before = await witness.witness(request(log, 9, 0))
    other = attacks.resealed(log, [{**line, "detail": "x"} for line in log.lines], log.key)
    others_key = attacks.Log(attacks.new_key(), log.lines, log.peaks)
    for wrong in (
        request(log, 8, 0),
        request(log, 8, 5),
        request(log, 12, 0),
        request(log, 12, 8),
        request(other, 9, 0),
        request(other, 12, 9),
        request(others_key, 12, 9),
        request(others_key, 9, 0),
        request(attacks.Log(log.key), 0, 0),
        WitnessRequest(head=request(log, 12, 9).head, proof=(*request(log, 12, 9).proof, "0" * 64)),
    ):
        with pytest.raises(AgentError) as caught:
            await Witness(tmp_path, "pc-1", "uid").witness(wrong)
        assert caught.value.code is AgentCode.AUDIT_HEAD_REFUSED
        assert caught.value.fields["held"]["size"] == 9
        view = await witness.view()
        assert (view.held, view.signature, view.refused) == (before.held, before.signature, wrong.head)
    after = await witness.witness(request(log, 12, 9))
    assert after.held is not None
    assert (after.held.size, after.refused is None) == (12, False)


def decided(log: attacks.Log, **changes: object) -> BreakRequest:
    """Append a decision about what the node holds to `log`, and return the message with its newest head."""
    values = {"node_id_text": "pc-1", "person": "ada", "role": "owner", "action": ACCEPTING, "result": "accepted"}
    seq = attacks.append(log, **{**values, **changes})
    attacks.append(log)
    return BreakRequest(head=log.head(), line=chain.canonical(log.lines[seq - 1]), proof=log.inclusion(seq))


async def test_an_owners_decision_in_the_log_lets_the_node_take_it_and_both_heads_stay(tmp_path: Path) -> None:
    before = attacks.build(random.Random(7), 9)
    witness = Witness(tmp_path, "pc-1", "uid")
    first = await witness.witness(request(before, 9, 0))
    assert first.held is not None
    log = attacks.restored(before, 5)
    with pytest.raises(AgentError):
        await witness.witness(request(log, 5, 0))
    wanted = decided(log, target=first.held.name)
    view = await Witness(tmp_path, "pc-1", "uid").accept(wanted)
    assert (view.held, view.refused, len(view.breaks)) == (wanted.head, None, 1)
    left = view.breaks[0]
    assert (left.was, left.signature, left.now, left.line) == (first.held, first.signature, wanted.head, wanted.line)
    assert left.refused == request(log, 5, 0).head
    assert verifies(view.key, view.signature or "", WITNESS_LINE + wanted.head.text())
    assert await witness.accept(wanted) == view, "a repeated call changes nothing"
    attacks.append(log)
    after = await witness.witness(request(log, len(log.lines), wanted.head.size))
    assert after.breaks == view.breaks


async def test_only_an_owners_decision_about_this_node_and_its_head_counts(tmp_path: Path) -> None:
    before = attacks.build(random.Random(8), 9)
    witness = Witness(tmp_path, "pc-1", "uid")
    held = (await witness.witness(request(before, 9, 0))).held
    assert held is not None

    def attempt(**changes: object) -> BreakRequest:
        return decided(attacks.restored(before, 5), **{"target": held.name, **changes})

    good = attempt()
    other = decided(attacks.restored(before, 4), target=held.name)
    refused = [
        attempt(role="operator"), attempt(role=""), attempt(person=""), attempt(node_id_text="pc-2"),
        attempt(target=""), attempt(target=f"8 lines, root {held.root}"), attempt(action="audit"),
        good.model_copy(update={"proof": good.proof[1:]}), good.model_copy(update={"proof": ()}),
        good.model_copy(update={"head": other.head}), good.model_copy(update={"line": other.line}),
        good.model_copy(update={"line": good.line.replace('"seq":6', '"seq":7')}),
    ]  # fmt: skip
    invalid = [
        good.model_copy(update={"line": line}) for line in ("", "[]", "7", "{}", "{", "[" * 5000, f" {good.line}")
    ]
    invalid += [
        good.model_copy(update={"line": good.line.replace("ada", "ad\u00e4")}),
        good.model_copy(update={"head": good.head.model_copy(update={"signature": "0" * 128})}),
    ]
    for wrong, code in (
        *((one, AgentCode.AUDIT_HEAD_REFUSED) for one in refused),
        *((one, AgentCode.INVALID_REQUEST) for one in invalid),
    ):  # fmt: skip
        with pytest.raises(AgentError) as caught:
            await witness.accept(wrong)
        assert caught.value.code is code, wrong.line
    view = await witness.view()
    assert (view.held, view.breaks) == (held, ())
    with pytest.raises(AgentError, match="holds no head"):
        await Witness(tmp_path, "pc-1", "another").accept(good)


async def test_a_refusal_that_is_over_is_laid_aside_in_the_same_way(tmp_path: Path) -> None:
    log = attacks.build(random.Random(9), 6)
    witness = Witness(tmp_path, "pc-1", "uid")
    await witness.witness(request(log, 6, 0))
    with pytest.raises(AgentError):
        await witness.witness(request(attacks.restored(log, 3), 3, 0))
    refused = (await witness.view()).refused
    assert refused is not None
    view = await witness.accept(decided(log, target=refused.name))
    assert (view.refused, view.breaks[0].refused) == (None, refused)


async def test_accepted_breaks_are_never_dropped(tmp_path: Path) -> None:
    log = attacks.build(random.Random(10), 3)
    witness = Witness(tmp_path, "pc-1", "uid")
    view = await witness.witness(request(log, 3, 0))
    for number in range(MAX_BREAKS):
        log = attacks.restored(log, 2)
        assert view.held is not None
        view = await witness.accept(decided(log, target=view.held.name))
        assert len(view.breaks) == number + 1
    assert view.held is not None
    with pytest.raises(AgentError, match="takes no further one"):
        await witness.accept(decided(attacks.restored(log, 2), target=view.held.name))
    assert (await witness.view()).breaks == view.breaks


def test_status_shows_the_head_a_conflict_and_each_break(tmp_path: Path) -> None:
    assert witness_status.lines(witness_status.facts(tmp_path, "uid")) == []
    log = attacks.build(random.Random(11), 4)
    witness = Witness(tmp_path, "pc-1", "uid")
    held = witness._take(request(log, 4, 0)).held
    assert held is not None
    shown = "\n".join(witness_status.lines(witness_status.facts(tmp_path, "uid")))
    assert f"4 lines, root {held.root}, seen 20" in shown
    assert "CONFLICT" not in shown
    other = attacks.restored(log, 2)
    with pytest.raises(AgentError):
        witness._take(request(other, 2, 0))
    assert "CONFLICT       refused 2 lines" in "\n".join(witness_status.lines(witness_status.facts(tmp_path, "uid")))
    witness._accept(decided(other, target=held.name))
    shown = "\n".join(witness_status.lines(witness_status.facts(tmp_path, "uid")))
    assert "CONFLICT" not in shown
    assert f"in place of 4 lines, root {held.root}, at " in shown
    assert '"person":"ada"' in shown
    (tmp_path / "witness.json").write_text("{")
    assert "cannot be read" in witness_status.lines(witness_status.facts(tmp_path, "uid"))[0]


async def test_a_head_that_is_not_signed_by_its_key_is_no_head(tmp_path: Path) -> None:
    head = attacks.build(random.Random(3), 4).head()
    for wrong in ({"signature": "0" * 128}, {"size": 5}, {"root": "0" * 64}, {"time": "now"}, {"key": "0" * 64}):
        with pytest.raises(AgentError) as caught:
            await Witness(tmp_path, "pc-1", "uid").witness(WitnessRequest(head=head.model_copy(update=wrong)))
        assert caught.value.code is AgentCode.INVALID_REQUEST
    assert (await Witness(tmp_path, "pc-1", "uid").view()).held is None


async def test_a_new_join_begins_anew_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    log = attacks.build(random.Random(4), 4)
    await Witness(tmp_path, "pc-1", "uid").witness(request(log, 4, 0))
    assert (await Witness(tmp_path, "pc-1", "another").view()).held is None
    for text in ("", "{", "[]", "7", json.dumps({"nodeUid": "uid"}), json.dumps({"nodeUid": "uid", "key": "x"})):
        (tmp_path / "witness.json").write_text(text)
        with pytest.raises(AgentError, match=r"witness\.json cannot be read") as caught:
            await Witness(tmp_path, "pc-1", "uid").view()
        assert caught.value.code is AgentCode.INTERNAL


async def test_the_route_is_fenced_and_answers_with_the_signature(master: Master) -> None:
    log = attacks.build(random.Random(5), 6)
    assert (await master.get("/witness")).body["held"] is None
    body = request(log, 6, 0).to_wire()
    for _ in range(2):
        reply = await master.change("PUT", "/witness", body, operation_id="op-same")
        assert (reply.status, AuditHead.model_validate(reply.body["held"])) == (200, log.head())
    assert (await master.get("/operations/op-same")).status == 404
    wrong = request(attacks.build(random.Random(6), 6), 6, 0).to_wire()
    reply = await master.change("PUT", "/witness", wrong, operation_id="op-same")
    assert (reply.status, reply.body["code"]) == (409, "audit_head_refused")
    assert (await master.change("PUT", "/witness", {"head": {}})).status == 400
    other = attacks.restored(log, 3)
    taken = decided(other, target=log.head().name)
    for _ in range(2):
        reply = await master.change("PUT", "/witness/break", taken.to_wire(), operation_id="op-break")
        assert (reply.status, reply.body["held"]["size"], len(reply.body["breaks"])) == (200, 5, 1)
    reply = await master.change("PUT", "/witness/break", {**taken.to_wire(), "line": "{}"})
    assert (reply.status, reply.body["code"]) == (400, "invalid_request")
