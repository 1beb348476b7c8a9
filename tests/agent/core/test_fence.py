"""Fencing over real TLS, across restarts, and under races."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import AgentError
from agent.fence import BrokenFence, Fence
from agent.wire.errors import AgentCode
from agent.wire.fence import MAX_EPOCH, Claim
from tests.agent.core.conftest import Agent, Master, launch_spec
from tests.waiting import stays_async, until_async

pytestmark = pytest.mark.unit

UID = "7a1f4e0c-0b5e-4c39-9a43-3a1f1c7d2b10"


async def test_before_the_first_claim_only_info_answers(stranger: Master) -> None:
    assert (await stranger.get("/info")).status == 200
    for path in ("/capabilities", "/status", "/events", "/instances/a", "/operations/x", "/nothing", "/info/"):
        reply = await stranger.get(path)
        assert (reply.status, reply.body["code"]) == (403, "not_approved"), path
    launch = await stranger.change("PUT", "/instances/a", launch_spec())
    assert (launch.status, launch.body["code"]) == (403, "not_approved")


async def test_a_launch_is_no_first_claim(stranger: Master, agent: Agent) -> None:
    await stranger.change("PUT", "/instances/a", launch_spec())
    assert (await stranger.get("/info")).body["heldClaim"] is None
    assert agent.engines.launches == []


async def test_a_lower_epoch_is_stale_and_an_equal_one_of_another_master_competes(master: Master) -> None:
    await master.claim(Claim(epoch=5, instance_id="master-one"))
    stale = await master.claim(Claim(epoch=4, instance_id="master-one"))
    assert (stale.status, stale.body["code"]) == (409, "stale_master")
    assert stale.body["fields"]["held"] == {"epoch": 5, "instanceId": "master-one"}
    competing = await master.claim(Claim(epoch=5, instance_id="master-two"))
    assert (competing.status, competing.body["code"]) == (409, "competing_master")
    assert (await master.claim(Claim(epoch=6, instance_id="master-two"))).status == 200


@pytest.mark.parametrize("epoch", [MAX_EPOCH + 1, 2**63 - 1, 2**63, 10**30, 0, -1, "1.5", "x", ""])
async def test_an_epoch_out_of_range_is_never_stored(master: Master, agent: Agent, epoch: object) -> None:
    odd = Claim.model_construct(epoch=epoch, instance_id="master-one")
    reply = await master.change("PUT", "/instances/a", launch_spec(), claim=odd)
    assert (reply.status, reply.body["code"]) == (400, "invalid_request")
    assert (await master.get("/info")).body["heldClaim"]["epoch"] == 1
    assert agent.engines.launches == []


def test_a_fence_with_an_epoch_out_of_range_is_named_at_start(tmp_path: Path) -> None:
    for epoch in (MAX_EPOCH + 1, 2**63 - 1, 0):
        (tmp_path / "fence.json").write_text(json.dumps({"nodeUid": UID, "epoch": epoch, "instanceId": "master-one"}))
        with pytest.raises(BrokenFence, match="Restore the file"):
            Fence(tmp_path, UID)
    (tmp_path / "fence.json").write_text(json.dumps({"nodeUid": UID, "epoch": MAX_EPOCH, "instanceId": "master-one"}))
    assert Fence(tmp_path, UID).held == Claim(epoch=MAX_EPOCH, instance_id="master-one")


async def test_a_refused_claim_changes_nothing_on_any_route(master: Master, agent: Agent) -> None:
    await master.claim(Claim(epoch=5, instance_id="master-one"))
    old = Claim(epoch=4, instance_id="master-one")
    for method, path, body in (
        ("PUT", "/instances/a", launch_spec()),
        ("POST", "/instances/a/stop", {}),
        ("DELETE", "/instances/a", None),
    ):
        assert (await master.change(method, path, body, claim=old)).body["code"] == "stale_master"
    assert agent.engines.launches == agent.engines.stops == []


async def test_a_newer_claim_on_any_call_is_kept(master: Master, agent: Agent) -> None:
    newer = Claim(epoch=9, instance_id="master-two")
    assert (await master.change("PUT", "/instances/a", launch_spec(), claim=newer)).status == 202
    assert (await master.get("/info")).body["heldClaim"] == newer.to_wire()


async def test_the_claim_outlives_the_agent(start_agent: Callable[[], Awaitable[Agent]]) -> None:
    first = await start_agent()
    await first.new_master(first.fleet.master).claim(Claim(epoch=3, instance_id="master-one"))
    second = await start_agent()
    master = second.new_master(second.fleet.master)
    assert (await master.claim(Claim(epoch=2, instance_id="master-one"))).body["code"] == "stale_master"
    assert (await master.get("/status")).status == 200


async def test_of_racing_masters_with_one_epoch_exactly_one_wins(stranger: Master) -> None:
    for round_number in range(1, 11):
        claims = [Claim(epoch=round_number, instance_id=f"master-{n:02}") for n in range(32)]
        replies = await asyncio.gather(*(stranger.claim(claim) for claim in claims))
        won = [claim for claim, reply in zip(claims, replies, strict=True) if reply.status == 200]
        assert len(won) == 1
        assert {reply.body["code"] for reply in replies if reply.status != 200} == {"competing_master"}
        assert (await stranger.get("/info")).body["heldClaim"] == won[0].to_wire()


async def test_a_new_claim_waits_for_the_calls_of_the_old_one(master: Master, agent: Agent) -> None:
    agent.engines.gate.clear()
    launch = asyncio.create_task(master.change("PUT", "/instances/a", launch_spec()))
    await until_async(lambda: agent.engines.arrived, "the launch to be under way")
    takeover = asyncio.create_task(master.claim(Claim(epoch=2, instance_id="master-two")))
    await stays_async(lambda: not takeover.done(), "the claim waits for the launch", 0.1)
    late = asyncio.create_task(master.change("PUT", "/instances/b", launch_spec()))
    agent.engines.gate.set()
    assert (await launch).status == 202
    assert (await takeover).status == 200
    assert (await late).body["code"] == "stale_master"


async def test_a_claim_that_cannot_be_written_is_not_admitted(
    stranger: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("agent.fence.write_json", full)
        reply = await stranger.claim()
        assert (reply.status, reply.body["code"]) == (500, "internal")
        assert "No space left" in reply.body["detail"]
    assert (await stranger.get("/info")).body["heldClaim"] is None


def test_a_claim_of_a_former_node_identity_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "fence.json").write_text(json.dumps({"nodeUid": "another-uid", "epoch": 7, "instanceId": "master-one"}))
    assert Fence(tmp_path, UID).held is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null ", '{"nodeUid": "' + UID + '"}', '{"epoch": 1}'])
def test_a_fence_that_cannot_be_read_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "fence.json").write_text(text)
    if text == "null ":
        assert Fence(tmp_path, UID).held is None
        return
    with pytest.raises(BrokenFence, match=r"fence\.json"):
        Fence(tmp_path, UID)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from(["master-aa", "master-bb", "master-cc"]), st.booleans()),
        max_size=25,
    ),
    st.randoms(use_true_random=False),
)
def test_the_highest_claim_wins_whatever_the_order_and_restarts(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str, bool]], chance: random.Random
) -> None:
    """The model: one held claim; equal passes, higher replaces, all else is refused; a restart changes nothing."""

    async def play() -> None:
        folder = tmp_path_factory.mktemp("fence")
        fence = Fence(folder, UID)
        held: Claim | None = None
        for epoch, name, restart in steps:
            if restart:
                fence = Fence(folder, UID)
            claim = Claim(epoch=epoch, instance_id=name)
            expected: AgentCode | None = None
            if held is not None and claim != held and epoch <= held.epoch:
                expected = AgentCode.STALE_MASTER if epoch < held.epoch else AgentCode.COMPETING_MASTER
            if expected is not None:
                with pytest.raises(AgentError) as caught:
                    await fence.admitted(claim).__aenter__()
                assert caught.value.code is expected
            else:
                async with fence.admitted(claim):
                    assert Fence(folder, UID).held == claim, "on disk before the answer"
                held = claim
            assert fence.held == held

    asyncio.run(play())
