"""Room for one more engine, and whose turn it is."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.admission import GIB, Need, Room, Starts, admit, reserve_bytes
from agent.config import AgentConfig
from agent.errors import AgentError
from agent.running.room import need_of, part_of_card
from agent.telemetry.nvml import Card, Cards
from agent.wire.capability import MemoryModel, Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState, LaunchSpec, SourceSpec
from tests.agent.engines.conftest import Node, spec


def room(host: int | None = 100 * GIB, **gpus: int | None) -> Room:
    return Room(host_available=host, host_total=host, gpu_free=dict(gpus), gpu_labels={"a": "GPU 0", "b": "GPU 1"})


@pytest.mark.unit
def test_a_refusal_names_the_part_and_its_numbers() -> None:
    with pytest.raises(AgentError) as host:
        admit(Need(10 * GIB, None, ()), room(12 * GIB), [], 4 * GIB)
    assert "host memory" in host.value.detail
    assert host.value.fields["freeBytes"] == 8 * GIB
    with pytest.raises(AgentError) as gpu:
        admit(Need(1, 20 * GIB, ("a", "b")), room(a=12 * GIB, b=9 * GIB), [], 0)
    assert "GPU 1" in gpu.value.detail
    assert gpu.value.fields["gpuUuid"] == "b"


@pytest.mark.unit
def test_a_refusal_names_the_node() -> None:
    with pytest.raises(AgentError) as refused:
        admit(Need(1, 20 * GIB, ("b",)), Room(None, None, {"b": 9 * GIB}, {"b": "GPU 1"}, "pc-1"), [], 0)
    assert "9.0 GiB can be used on node pc-1 (GPU 1)." in refused.value.detail
    with pytest.raises(AgentError) as refused:
        admit(Need(5 * GIB, None, ()), Room(GIB, GIB, {}, {}, "pc-1"), [], 0)
    assert "on node pc-1 (host memory)." in refused.value.detail


@pytest.mark.unit
@pytest.mark.parametrize(
    ("model", "host", "gpu", "args", "gpus", "needs"),
    [
        # a discrete node: a share for each card, and a host part of its own
        (MemoryModel.DISCRETE, None, 40 * GIB, (), 2, (10 * GIB, 20 * GIB)),
        (MemoryModel.DISCRETE, None, 40 * GIB, ("--swap-space", "1"), 2, (4 * GIB, 20 * GIB)),
        (MemoryModel.DISCRETE, 7 * GIB, 40 * GIB, ("--swap-space", "1"), 2, (7 * GIB, 20 * GIB)),
        # shared memory: one budget, from the host
        (MemoryModel.UNIFIED, None, 40 * GIB, (), 0, (42 * GIB, None)),
        (MemoryModel.UNIFIED, 7 * GIB, 40 * GIB, (), 0, (47 * GIB, None)),
        (MemoryModel.UNIFIED, 7 * GIB, None, (), 0, (7 * GIB, None)),
    ],
)
def test_what_a_launch_needs_is_counted_by_the_memory_model(model, host, gpu, args, gpus, needs) -> None:
    launch = spec(
        runtime=Runtime.VLLM,
        args=args,
        gpu_uuids=tuple(f"GPU-{number}" for number in range(gpus)),
        host_memory_budget_bytes=host,
        gpu_memory_budget_bytes=gpu,
    )
    need = need_of(launch, None, model)
    assert (need.host_bytes, need.share()) == needs


@pytest.mark.unit
@pytest.mark.parametrize(
    ("model", "sizes", "budget", "gpus", "part"),
    [
        (MemoryModel.DISCRETE, (24, 24), 20, ("GPU-0", "GPU-1"), 0.416),
        (MemoryModel.DISCRETE, (24, 48), 20, ("GPU-0", "GPU-1"), 0.208),
        (MemoryModel.DISCRETE, (24, 24), 100, ("GPU-0",), 1.0),
        (MemoryModel.DISCRETE, (24, None), 20, ("GPU-0", "GPU-1"), None),
        (MemoryModel.DISCRETE, (24, 24), None, ("GPU-0",), None),
        (MemoryModel.UNIFIED, (None,), 30, (), 0.25),
        (MemoryModel.UNIFIED, (), 30, (), None),
    ],
)
def test_a_budget_is_a_part_of_each_card_and_never_more_than_was_admitted(model, sizes, budget, gpus, part) -> None:
    found = tuple(
        Card(uuid=f"GPU-{at}", index=at, total_bytes=None if size is None else size * GIB)
        for at, size in enumerate(sizes)
    )
    yard = SimpleNamespace(memory_model=model, cards=Cards(found))
    launch = spec(gpu_uuids=gpus, gpu_memory_budget_bytes=None if budget is None else budget * GIB)
    assert part_of_card(launch, yard, 120 * GIB) == part


@pytest.mark.unit
def test_what_other_starts_will_take_is_not_free() -> None:
    other = Need(50 * GIB, 8 * GIB, ("a",))
    admit(Need(50 * GIB, 8 * GIB, ("a",)), room(a=16 * GIB), [other], 0)
    with pytest.raises(AgentError):
        admit(Need(51 * GIB, None, ()), room(), [other], 0)
    with pytest.raises(AgentError):
        admit(Need(1, 9 * GIB, ("a",)), room(a=16 * GIB), [other], 0)


@pytest.mark.unit
def test_what_is_unknown_refuses_nothing() -> None:
    admit(Need(None, None, ()), room(0), [], 0)
    admit(Need(10**15, None, ()), room(None), [], 0)
    admit(Need(None, 10**15, ("a",)), room(a=None), [], 0)


@pytest.mark.unit
@given(st.integers(0, 2**40), st.integers(0, 2**40), st.lists(st.integers(0, 2**38), max_size=4), st.integers(0, 2**36))
def test_what_is_admitted_fits_and_what_fits_is_admitted(
    needed: int, available: int, taken: list[int], reserve: int
) -> None:
    fits = needed <= available - reserve - sum(taken)
    try:
        admit(Need(needed, None, ()), room(available), [Need(one, None, ()) for one in taken], reserve)
    except AgentError:
        assert not fits
    else:
        assert fits


@pytest.mark.unit
def test_the_default_reserve_gives_way_on_a_small_machine_and_the_owners_word_does_not() -> None:
    assert reserve_bytes(AgentConfig(), 8 * GIB) == 2 * GIB
    assert reserve_bytes(AgentConfig(), 64 * GIB) == 4 * GIB
    assert reserve_bytes(AgentConfig(memory_reserve_gib=6), 8 * GIB) == 6 * GIB


@pytest.mark.unit
def test_the_nodes_settings_from_the_master_are_obeyed() -> None:
    assert reserve_bytes(AgentConfig(), 8 * GIB, 1 * GIB) == 1 * GIB
    assert reserve_bytes(AgentConfig(memory_reserve_gib=6), 8 * GIB, 1 * GIB) == 6 * GIB
    assert reserve_bytes(AgentConfig(memory_reserve_gib=6), 64 * GIB, 9 * GIB) == 9 * GIB
    admit(Need(None, 10 * GIB, ("a",), gpu_reserve={"b": 9 * GIB}), room(a=12 * GIB), [], 0)
    with pytest.raises(AgentError) as refused:
        admit(Need(None, 10 * GIB, ("a",), gpu_reserve={"a": 3 * GIB}), room(a=12 * GIB), [], 0)
    assert refused.value.fields["freeBytes"] == 9 * GIB


@pytest.mark.unit
@pytest.mark.parametrize(("own", "wanted", "fits"), [(None, 1, 1), (None, 2, 2), (3, 2, 2), (1, 2, 1), (2, None, 2)])
def test_of_two_limits_of_starts_the_lower_one_counts(own, wanted, fits) -> None:
    starts, need = Starts(own), Need(None, None, (), max_starts=wanted)
    assert sum(starts.try_take(str(number), frozenset(), need) for number in range(5)) == fits


async def test_starts_on_one_gpu_wait_for_each_other_and_on_others_do_not() -> None:
    starts, need = Starts(None), Need(None, None, ())
    assert starts.try_take("one", frozenset({"a"}), need)
    assert starts.try_take("two", frozenset({"b"}), need)
    assert not starts.try_take("three", frozenset({"a", "c"}), need)
    waiting = asyncio.create_task(starts.take("three", frozenset({"a", "c"}), need))
    await asyncio.sleep(0)
    assert not waiting.done()
    await starts.release("one")
    await asyncio.wait_for(waiting, 1)


async def test_the_nodes_limit_of_starts_is_obeyed() -> None:
    starts, need = Starts(1), Need(None, None, ())
    assert starts.try_take("one", frozenset(), need)
    assert not starts.try_take("two", frozenset(), need)


@pytest.fixture
def big_model(config: AgentConfig) -> SourceSpec:
    """A file that is larger than the memory of this machine, and takes no room on disk."""
    folder = config.models_root / "big"
    folder.mkdir()
    with (folder / "big.gguf").open("wb") as file:
        file.truncate(psutil.virtual_memory().total * 2)
    return SourceSpec(folder="big")


async def test_a_model_that_does_not_fit_is_refused_before_anything_starts(node: Node, big_model: SourceSpec) -> None:
    launch = spec(runtime=Runtime.LLAMA_CPP, source=big_model, args=())
    with pytest.raises(AgentError) as refused:
        await node.instances.launch("i1", "op1", launch)
    assert refused.value.code is AgentCode.ADMISSION_REFUSED
    assert refused.value.fields["part"] == "host"
    assert node.instances.views() == ()
    assert [path.name for path in (node.config.state_dir / "instances").iterdir()] == [".home"]
    await node.instances.launch("i1", "op2", launch.model_copy(update={"force": True}))
    assert (await node.until("i1", InstanceState.EXITED)).reason_code == "engine_exited"


async def test_the_second_start_of_a_node_waits_says_so_and_goes_on(
    config: AgentConfig, make_node, tmp_path: Path
) -> None:
    node = make_node(config.model_copy(update={"max_concurrent_starts": 1}))
    await node.instances.recover()
    await node.instances.launch("i1", "op1", spec(args=("--start-seconds", "1")))
    await node.instances.launch("i2", "op2", spec(model_id="m2"))
    await asyncio.sleep(0.5)
    waiting = node.instances.view("i2")
    assert waiting.state is InstanceState.PREPARING
    assert "another model" in (waiting.progress.text if waiting.progress else "")
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


async def test_gpus_that_are_not_here_are_named(node: Node) -> None:
    with pytest.raises(AgentError) as refused:
        await node.instances.launch("i1", "op1", spec(gpu_uuids=("GPU-9",)))
    assert refused.value.code is AgentCode.GPU_MISSING


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
    """A node of two cards of 16 GiB whose engines are ready when they are told; specs for it; and telling them."""

    async def found(_: str = "") -> Cards:
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

    def wish(name: str, *gpus: str, gib: int = 1, **changes: object) -> LaunchSpec:
        values: dict[str, object] = {
            "runtime": Runtime.LLAMA_CPP, "source": SourceSpec(folder="small"), "args": (), "model_id": name,
            "served_names": (name,), "gpu_uuids": gpus, "gpu_memory_budget_bytes": gib * GIB,
            "host_memory_budget_bytes": 0,
        }  # fmt: skip
        return spec(**values | changes)

    return node, wish, lambda name: server.with_name(f"go-{name}").touch()


async def test_two_starts_on_one_gpu_follow_each_other_and_those_on_other_gpus_run_beside_them(cards) -> None:
    node, wish, go = cards
    await node.instances.launch("one", "op1", wish("one", "GPU-a"))
    await node.instances.launch("both", "op2", wish("both", "GPU-a", "GPU-b"))
    await node.instances.launch("other", "op3", wish("other", "GPU-b"))
    await node.instances.launch("host", "op4", wish("host"))
    await node.instances.launch("host2", "op5", wish("host2"))
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
    node, wish, go = cards
    await node.instances.launch("one", "op1", wish("one", "GPU-a"))
    await node.instances.launch("big", "op2", wish("big", "GPU-a", gib=15))
    await node.until("one", InstanceState.LOADING)
    go("one")
    ended = await node.until("big", InstanceState.EXITED)
    assert ended.reason_code == "admission_refused"
    assert "14.0 GiB can be used on node n1 (GPU 0)" in (ended.reason or "")


async def test_a_reserve_counts_for_its_card_alone_and_force_skips_memory_and_not_the_turn(cards) -> None:
    node, wish, _ = cards
    reserve = {"gpu_reserve_bytes": {"GPU-b": 6 * GIB}}
    await node.instances.launch("one", "op1", wish("one", "GPU-a", gib=14, **reserve))
    with pytest.raises(AgentError) as refused:
        await node.instances.launch("two", "op2", wish("two", "GPU-b", gib=9, **reserve))
    assert (refused.value.fields["gpuUuid"], refused.value.fields["freeBytes"]) == ("GPU-b", 8 * GIB)
    await node.instances.launch("two", "op3", wish("two", "GPU-b", gib=9, force=True, **reserve))
    await node.until("two", InstanceState.LOADING)
    await node.instances.launch("three", "op4", wish("three", "GPU-b", force=True))
    await asyncio.sleep(0.3)
    assert node.instances.view("three").state is InstanceState.PREPARING
