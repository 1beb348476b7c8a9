"""Starts on one node: whose turn it is, and what is asked again when it comes."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.admission import GIB, MemoryNeed, StartSlots
from agent.config import AgentConfig
from agent.errors import AgentError
from agent.telemetry.nvml import Card, Cards
from agent.wire.capability import Runtime
from agent.wire.instances import InstanceState, LaunchSpec, MemoryEstimate, SourceSpec
from tests.agent.engines.conftest import Node, spec


@pytest.mark.unit
@pytest.mark.parametrize(("own", "setting", "fits"), [(None, 1, 1), (None, 2, 2), (3, 2, 2), (1, 2, 1), (2, None, 2)])
def test_of_two_limits_of_starts_the_lower_one_counts(own, setting, fits) -> None:
    starts, need = StartSlots(own), MemoryNeed(None, None, (), max_starts=setting)
    assert sum(starts.try_take(str(number), frozenset(), need) for number in range(5)) == fits


async def test_starts_on_one_gpu_wait_for_each_other_and_on_others_do_not() -> None:
    starts, need = StartSlots(None), MemoryNeed(None, None, ())
    assert starts.try_take("one", frozenset({"a"}), need)
    assert starts.try_take("two", frozenset({"b"}), need)
    assert not starts.try_take("three", frozenset({"a", "c"}), need)
    waiting = asyncio.create_task(starts.take("three", frozenset({"a", "c"}), need))
    await asyncio.sleep(0)
    assert not waiting.done()
    await starts.release("one")
    await asyncio.wait_for(waiting, 1)


async def test_the_nodes_limit_of_starts_is_obeyed() -> None:
    starts, need = StartSlots(1), MemoryNeed(None, None, ())
    assert starts.try_take("one", frozenset(), need)
    assert not starts.try_take("two", frozenset(), need)


async def test_the_second_start_of_a_node_waits_says_so_and_goes_on(
    config: AgentConfig, make_node, tmp_path: Path
) -> None:
    node = make_node(config.model_copy(update={"max_concurrent_starts": 1}))
    await node.instances.recover()
    await node.instances.launch("i1", "op1", spec(args=("--start-seconds", "1")))
    await node.instances.launch("i2", "op2", spec(model_id="m2"))
    waiting = await node.until_progress("i2", "another model")
    assert waiting.state is InstanceState.PREPARING
    await node.until("i1", InstanceState.READY)
    await node.until("i2", InstanceState.READY)


async def test_a_start_that_waits_can_be_stopped(config: AgentConfig, make_node) -> None:
    node = make_node(config.model_copy(update={"max_concurrent_starts": 1}))
    await node.instances.recover()
    await node.instances.launch("i1", "op1", spec(args=("--never-ready",)))
    await node.instances.launch("i2", "op2", spec(model_id="m2"))
    await node.instances.stop("i2", 1.0)
    assert (await node.until("i2", InstanceState.EXITED)).stop_requested
    assert len(node.processes()) <= 1


SLOW_SERVER = f"""#!{sys.executable}
import http.server, pathlib, sys
port, name = int(sys.argv[sys.argv.index("--port") + 1]), sys.argv[sys.argv.index("--alias") + 1]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if pathlib.Path(__file__).with_name("go-" + name).exists() else 503)
        self.end_headers()
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
async def cards(
    config: AgentConfig, make_node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Node, Callable[..., LaunchSpec], Callable[[str], None]]:
    """A node with two cards of 16 GiB, a maker of launch specs, and a switch that makes an engine ready."""

    async def found(*_: object) -> Cards:
        one = {"total_bytes": 16 * GIB, "used_bytes": 2 * GIB}
        return Cards(tuple(Card(uuid=f"GPU-{letter}", index=at, **one) for at, letter in enumerate("ab")))

    monkeypatch.setattr("agent.telemetry.gpu.cards", found)
    server = tmp_path / "llama-server"
    server.write_text(SLOW_SERVER)
    server.chmod(0o755)
    (config.models_root / "small").mkdir()
    (config.models_root / "small" / "small.gguf").write_bytes(b"GGUF")
    node = make_node(config.model_copy(update={"llama_server": str(server)}))
    await node.instances.recover()

    def launch_spec(name: str, *gpus: str, gib: int = 1, **changes: object) -> LaunchSpec:
        values: dict[str, object] = {
            "runtime": Runtime.LLAMA_CPP, "source": SourceSpec(folder="small"), "args": (), "model_id": name,
            "served_names": (name,), "gpu_uuids": gpus, "gpu_memory_budget_bytes": gib * GIB,
            "host_memory_budget_bytes": 0,
        }  # fmt: skip
        return spec(**values | changes)

    return node, launch_spec, lambda name: server.with_name(f"go-{name}").touch()


async def test_two_starts_on_one_gpu_follow_each_other_and_those_on_other_gpus_run_beside_them(cards) -> None:
    node, launch_spec, go = cards
    await node.instances.launch("one", "op1", launch_spec("one", "GPU-a"))
    await node.instances.launch("both", "op2", launch_spec("both", "GPU-a", "GPU-b"))
    await node.instances.launch("other", "op3", launch_spec("other", "GPU-b"))
    await node.instances.launch("host", "op4", launch_spec("host"))
    await node.instances.launch("host2", "op5", launch_spec("host2"))
    for name in ("one", "other", "host"):
        await node.until(name, InstanceState.LOADING)
    assert [node.instances.view(name).state for name in ("both", "host2")] == [InstanceState.PREPARING] * 2
    go("one")
    await node.until("one", InstanceState.READY)
    assert node.instances.view("both").state is InstanceState.PREPARING, "the other of its cards is still taken"
    go("other")
    go("host")
    await node.until("both", InstanceState.LOADING)
    await node.until("host2", InstanceState.LOADING)


async def test_a_start_that_waited_for_a_gpu_is_asked_again_whether_it_fits(cards) -> None:
    node, launch_spec, go = cards
    await node.instances.launch("one", "op1", launch_spec("one", "GPU-a"))
    await node.instances.launch("big", "op2", launch_spec("big", "GPU-a", gib=15))
    await node.until("one", InstanceState.LOADING)
    go("one")
    ended = await node.until("big", InstanceState.EXITED)
    assert ended.reason_code == "admission_refused"
    assert "memory of GPU 0 on node n1: the model needs about 15.0 GiB and 14.0 GiB" in (ended.reason or "")


async def test_an_order_without_budgets_is_refused_by_its_estimate_and_one_that_waited_is_asked_again(cards) -> None:
    node, launch_spec, go = cards
    none = {"gpu_memory_budget_bytes": None, "host_memory_budget_bytes": None}
    takes = lambda gib: none | {"estimate": MemoryEstimate(host_bytes=0, gpu_bytes=gib * GIB)}  # noqa: E731 - a value
    with pytest.raises(AgentError) as refused:
        await node.instances.launch("one", "op1", launch_spec("one", "GPU-a", "GPU-b", **takes(15)))
    assert [part["neededBytes"] for part in refused.value.fields["parts"]] == [0, 15 * GIB, 15 * GIB]
    await node.instances.launch("one", "op2", launch_spec("one", "GPU-a", **takes(14)))
    await node.instances.launch("two", "op3", launch_spec("two", "GPU-a", **takes(15)))
    await node.until("one", InstanceState.LOADING)
    go("one")
    assert (await node.until("two", InstanceState.EXITED)).reason_code == "admission_refused"
    await node.instances.launch("two", "op4", launch_spec("two", "GPU-a", force=True, **takes(15)))
    await node.until("two", InstanceState.LOADING)


async def test_a_reserve_counts_for_its_card_alone_and_force_skips_memory_and_not_the_turn(cards) -> None:
    node, launch_spec, _ = cards
    reserve = {"gpu_reserve_bytes": {"GPU-b": 6 * GIB}}
    await node.instances.launch("one", "op1", launch_spec("one", "GPU-a", gib=14, **reserve))
    with pytest.raises(AgentError) as refused:
        await node.instances.launch("two", "op2", launch_spec("two", "GPU-b", gib=9, **reserve))
    assert (refused.value.fields["gpuUuid"], refused.value.fields["freeBytes"]) == ("GPU-b", 8 * GIB)
    await node.instances.launch("two", "op3", launch_spec("two", "GPU-b", gib=9, force=True, **reserve))
    await node.until("two", InstanceState.LOADING)
    await node.instances.launch("three", "op4", launch_spec("three", "GPU-b", force=True))
    assert (await node.until_progress("three", "another model")).state is InstanceState.PREPARING
