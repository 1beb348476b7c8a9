"""A repeated call receives the same response, and its effect happens once, whatever was killed in between."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent.errors import AgentError
from agent.operations import JournaledCall, OperationJournal, RecordedResponse, body_digest
from agent.wire.errors import AgentCode
from tests.agent.core.conftest import Agent, Master, launch_spec
from tests.waiting import stays_async, until_async

pytestmark = pytest.mark.unit


async def test_a_repeat_of_a_finished_call_gets_the_stored_answer(master: Master, agent: Agent) -> None:
    first = await master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")
    again = await master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")
    assert (first.status, first.body) == (again.status, again.body)
    assert agent.engines.launches == ["op-x"]


async def test_the_order_of_keys_in_a_body_does_not_make_it_another(master: Master, agent: Agent) -> None:
    await master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")
    turned = dict(reversed(launch_spec().items()))
    assert (await master.change("PUT", "/instances/a", turned, operation_id="op-x")).status == 202
    assert agent.engines.launches == ["op-x"]


async def test_a_repeat_while_the_call_is_at_work_waits_for_its_answer(master: Master, agent: Agent) -> None:
    agent.engines.gate.clear()
    calls = [
        asyncio.create_task(master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")) for _ in range(8)
    ]
    await until_async(lambda: agent.engines.arrived, "the launch to be under way")
    await stays_async(lambda: not any(call.done() for call in calls), "each waits for the answer", 0.1)
    assert agent.engines.arrived == 1
    assert (await master.get("/operations/op-x")).body["state"] == "running"
    agent.engines.gate.set()
    replies = await asyncio.gather(*calls)
    assert {(reply.status, json.dumps(reply.body)) for reply in replies} == {(202, json.dumps(replies[0].body))}
    assert agent.engines.launches == ["op-x"]


async def test_one_id_with_two_bodies_is_refused(master: Master, agent: Agent) -> None:
    await master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")
    reply = await master.change("PUT", "/instances/a", launch_spec(generation=2), operation_id="op-x")
    assert (reply.status, reply.body["code"]) == (400, "invalid_request")
    assert "another body" in reply.body["detail"]
    assert agent.engines.launches == ["op-x"]


async def test_one_id_may_serve_two_routes(master: Master, agent: Agent) -> None:
    await master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")
    assert (await master.change("POST", "/instances/a/stop", {}, operation_id="op-x")).status == 202
    assert (await master.get("/operations/op-x")).body["route"] == "POST /instances/a/stop"


async def test_a_refusal_is_repeated_too(master: Master, agent: Agent) -> None:
    agent.engines.refuse_with = AgentError(AgentCode.ADMISSION_REFUSED, "needs 9 GiB, 4 are free", {"freeBytes": 4})
    first = await master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")
    agent.engines.refuse_with = None
    again = await master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")
    assert (first.status, first.body) == (again.status, again.body) == (409, first.body)
    assert (await master.get("/operations/op-x")).body["refusal"]["code"] == "admission_refused"
    assert (await master.change("PUT", "/instances/a", launch_spec(), operation_id="op-y")).status == 202


@pytest.mark.parametrize("code", [AgentCode.START_CONFLICT, AgentCode.DELIVERY_FAILED, AgentCode.INTERNAL])
async def test_what_time_may_cure_is_tried_again(master: Master, agent: Agent, code: AgentCode) -> None:
    agent.engines.refuse_with = AgentError(code, "not now")
    assert (await master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")).body["code"] == code.value
    agent.engines.refuse_with = None
    assert (await master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")).status == 202


async def test_a_stale_master_does_not_read_old_answers(master: Master) -> None:
    from agent.wire.fence import Claim

    await master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")
    await master.claim(Claim(epoch=2, instance_id="master-two"))
    again = await master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")
    assert again.body["code"] == "stale_master"


async def test_a_call_whose_caller_left_is_finished_and_kept(master: Master, agent: Agent) -> None:
    agent.engines.gate.clear()
    call = asyncio.create_task(master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x"))
    await until_async(lambda: agent.engines.arrived, "the launch to be under way")
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    agent.engines.gate.set()
    assert (await master.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")).status == 202
    assert agent.engines.launches == ["op-x"]


async def test_answers_outlive_the_agent(start_agent: Callable[[], Awaitable[Agent]]) -> None:
    first = await start_agent()
    before = first.new_master(first.fleet.master)
    await before.claim()
    launched = await before.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")
    second = await start_agent()
    after = second.new_master(second.fleet.master)
    again = await after.change("PUT", "/instances/a", launch_spec(), operation_id="op-x")
    assert (again.status, again.body) == (launched.status, launched.body)
    assert second.engines.launches == []


@pytest.mark.parametrize("operation_id", ["", " ", "a/b", "x" * 129, "-x", "ä"])
async def test_an_operation_id_that_is_none_is_refused(operation_id: str) -> None:
    with pytest.raises(AgentError, match="operation id"):
        JournaledCall(operation_id, "PUT /x", "0")


CRASHING = """
import asyncio, os, signal, sys
from pathlib import Path
from agent.operations import JournaledCall, OperationJournal, RecordedResponse
from agent import operations

where, folder, effects = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
real_write = operations.write_json
writes = 0

def write(path, value):
    global writes
    writes += 1
    if where == f"before-write-{writes}":
        os.kill(os.getpid(), signal.SIGKILL)
    real_write(path, value)
    if where == f"after-write-{writes}":
        os.kill(os.getpid(), signal.SIGKILL)

operations.write_json = write

async def effect():
    # idempotent, as every effect of the agent is: the same thing asked again leaves the same thing
    (effects / "engine").write_text("started")
    if where == "in-effect":
        os.kill(os.getpid(), signal.SIGKILL)
    return RecordedResponse(202, {"state": "starting"})

async def main():
    journal = OperationJournal(folder)
    journal.open()
    print(sorted(view.state for view in [await journal.view("op-x")]) if where == "look" else "")
    if where == "look":
        return
    answer = await journal.run(JournaledCall("op-x", "PUT /instances/a", "d"), effect)
    print(answer.status, answer.body["state"])

asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["before-write-1", "after-write-1", "in-effect", "before-write-2", "after-write-2"])
def test_kill_9_anywhere_in_a_call_loses_nothing(tmp_path: Path, where: str) -> None:
    folder, effects = tmp_path / "state", tmp_path / "effects"
    folder.mkdir()
    effects.mkdir()

    def run(stage: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CRASHING), stage, str(folder), str(effects)],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        )

    assert run(where).returncode == -signal.SIGKILL
    written = 0 if where == "before-write-1" else 1
    assert len(list((folder / "journal").glob("*.json"))) == written
    repeated = run("nowhere")
    assert repeated.stdout.split() == ["202", "starting"], repeated.stderr
    assert (effects / "engine").read_text() == "started"
    assert run("look").stdout.strip() == "['succeeded']"
    assert not list((folder / "journal").glob(".*")), "no half-written file is left"


def _call(number: int) -> JournaledCall:
    return JournaledCall(f"op-{number}", "PUT /instances/a", body_digest({"n": number}))


async def _answer() -> RecordedResponse:
    return RecordedResponse(200, {})


async def test_the_journal_stays_small_and_keeps_the_newest(tmp_path: Path) -> None:
    journal = OperationJournal(tmp_path, retained=20)
    journal.open()
    for number in range(60):
        await journal.run(_call(number), _answer)
    files = list((tmp_path / "journal").glob("*.json"))
    assert len(files) <= 20
    assert (await journal.view("op-59")).state == "succeeded"
    with pytest.raises(AgentError):
        await journal.view("op-0")
    reopened = OperationJournal(tmp_path, retained=20)
    reopened.open()
    assert (await reopened.view("op-59")).state == "succeeded"


async def test_responses_are_held_on_disk_and_not_in_memory(tmp_path: Path) -> None:
    journal = OperationJournal(tmp_path)
    journal.open()

    async def effect() -> RecordedResponse:
        return RecordedResponse(202, {"lastLines": [f"{number} {'x' * 120}" for number in range(100)]})

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(200):
            await journal.run(_call(number), effect)
        gc.collect()
        assert (tracemalloc.get_traced_memory()[0] - before) / 200 < 2048
    finally:
        tracemalloc.stop()
    assert await journal.run(_call(7), _answer) == await effect()


@pytest.mark.parametrize("damage", ["gone", "torn"])
async def test_a_response_whose_file_was_lost_is_had_by_the_effect_again(tmp_path: Path, damage: str) -> None:
    journal = OperationJournal(tmp_path)
    journal.open()
    await journal.run(_call(1), _answer)
    path = next((tmp_path / "journal").glob("*.json"))
    if damage == "gone":
        path.unlink()
    else:
        path.write_text('{"digest":')
    with pytest.raises(AgentError):
        await journal.view("op-1")
    assert (await journal.run(_call(1), _answer)).status == 200
    assert (await journal.view("op-1")).state == "succeeded"


async def test_a_response_that_could_not_be_written_is_still_repeated_by_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = OperationJournal(tmp_path)
    journal.open()
    done: list[int] = []

    async def effect() -> RecordedResponse:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        done.append(1)
        monkeypatch.setattr("agent.operations.write_json", full)
        return RecordedResponse(202, {"state": "starting"})

    assert (await journal.run(_call(1), effect)).status == 202
    assert (await journal.run(_call(1), effect)).body == {"state": "starting"}
    assert (await journal.view("op-1")).state == "succeeded"
    assert done == [1]


async def test_a_call_at_work_is_never_dropped(tmp_path: Path) -> None:
    journal = OperationJournal(tmp_path, retained=5)
    journal.open()
    gate = asyncio.Event()

    async def slow() -> RecordedResponse:
        await gate.wait()
        return RecordedResponse(200, {"slow": True})

    at_work = asyncio.create_task(journal.run(_call(0), slow))
    await asyncio.sleep(0)
    for number in range(1, 30):
        await journal.run(_call(number), _answer)
    assert (await journal.view("op-0")).state == "running"
    gate.set()
    assert (await at_work).body == {"slow": True}


async def test_a_file_that_is_no_call_is_left_out_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = OperationJournal(tmp_path)
    journal.open()
    await journal.run(_call(1), _answer)
    (tmp_path / "journal" / "torn.json").write_text('{"digest":')
    reopened = OperationJournal(tmp_path)
    reopened.open()
    assert (await reopened.view("op-1")).state == "succeeded"
    assert "torn.json" in caplog.text


async def test_a_call_that_cannot_be_written_down_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = OperationJournal(tmp_path)
    journal.open()
    done: list[int] = []

    async def effect() -> RecordedResponse:
        done.append(1)
        return RecordedResponse(200, {})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("agent.operations.write_json", full)
        with pytest.raises(AgentError, match="No space left"):
            await journal.run(_call(1), effect)
    assert done == []
    assert (await journal.run(_call(1), effect)).status == 200
