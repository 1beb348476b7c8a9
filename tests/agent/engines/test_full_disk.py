"""A disk that is full: nothing is started that could not be found again, and nothing that runs is left alone."""

import errno
from typing import Any

import pytest

from agent.errors import AgentError
from agent.running.record import InstanceRecord, RecordStore
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState
from tests.agent.engines.conftest import Node, spec

pytestmark = pytest.mark.faults


@pytest.fixture
def full_from(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the disk be full from the given save on, counted from one; 0 is never."""
    state = {"at": 0, "count": 0}
    save = RecordStore.save

    async def maybe(self: RecordStore, record: InstanceRecord) -> None:
        state["count"] += 1
        if state["at"] and state["count"] >= state["at"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        await save(self, record)

    monkeypatch.setattr(RecordStore, "save", maybe)
    return lambda number: state.update(at=number, count=0)


async def test_a_launch_that_cannot_be_written_down_is_refused(node: Node, full_from: Any) -> None:
    full_from(1)
    with pytest.raises(AgentError) as refused:
        await node.instances.launch("i1", "op1", spec())
    assert refused.value.code is AgentCode.DELIVERY_FAILED
    assert "Free disk space" in refused.value.detail
    full_from(0)
    await node.instances.launch("i1", "op2", spec())
    await node.until("i1", InstanceState.READY)


@pytest.mark.parametrize("at", [2, 3])
async def test_without_room_for_the_intent_nothing_is_started(node: Node, full_from: Any, at: int) -> None:
    full_from(at)
    await node.instances.launch("i1", "op1", spec())
    view = await node.until("i1", InstanceState.EXITED)
    assert view.reason_code == "state_unwritable"
    assert node.processes() == []


@pytest.mark.parametrize("at", [4, 5])
async def test_an_engine_that_runs_when_the_disk_fills_is_watched_and_can_be_stopped(
    node: Node, full_from: Any, at: int
) -> None:
    full_from(at)
    await node.instances.launch("i1", "op1", spec())
    await node.until("i1", InstanceState.READY)
    await node.instances.stop("i1", 5.0)
    view = await node.until("i1", InstanceState.EXITED)
    assert view.stop_requested
    assert node.processes() == []


async def test_an_engine_whose_place_was_not_written_down_is_adopted_once_there_is_room(
    node: Node, full_from: Any
) -> None:
    full_from(4)
    await node.instances.launch("i1", "op1", spec())
    before = await node.until("i1", InstanceState.READY)
    full_from(0)
    await node.restart()
    after = await node.until("i1", InstanceState.READY)
    assert after.pid == before.pid
    assert len(node.processes()) == 1
