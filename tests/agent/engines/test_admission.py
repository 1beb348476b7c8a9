"""NodeCapacity for one more engine: what is free, what is kept back, and what a refusal says."""

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.admission import GIB, MemoryNeed, NodeCapacity, admit, reserve_bytes
from agent.config import AgentConfig
from agent.errors import AgentError
from agent.wire.capability import Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState, SourceSpec
from tests.agent.engines.conftest import Node, spec


def capacity(host: int | None = 100 * GIB, **gpus: int | None) -> NodeCapacity:
    return NodeCapacity(
        host_available=host, host_total=host, gpu_free=dict(gpus), gpu_labels={"a": "GPU 0", "b": "GPU 1"}
    )


@pytest.mark.unit
def test_a_refusal_names_the_part_and_its_numbers() -> None:
    with pytest.raises(AgentError) as host:
        admit(MemoryNeed(10 * GIB, None, ()), capacity(12 * GIB), [], 4 * GIB)
    assert "host memory" in host.value.detail
    assert host.value.fields["freeBytes"] == 8 * GIB
    with pytest.raises(AgentError) as gpu:
        admit(MemoryNeed(1, 20 * GIB, ("a", "b")), capacity(a=12 * GIB, b=9 * GIB), [], 0)
    assert "GPU 1" in gpu.value.detail
    assert gpu.value.fields["gpuUuid"] == "b"


@pytest.mark.unit
def test_a_refusal_names_the_node() -> None:
    with pytest.raises(AgentError) as refused:
        admit(MemoryNeed(1, 20 * GIB, ("b",)), NodeCapacity(None, None, {"b": 9 * GIB}, {"b": "GPU 1"}, "pc-1"), [], 0)
    assert "Not enough memory of GPU 1 on node pc-1: " in refused.value.detail
    with pytest.raises(AgentError) as refused:
        admit(MemoryNeed(5 * GIB, None, ()), NodeCapacity(GIB, GIB, {}, {}, "pc-1"), [], 0)
    assert "Not enough host memory on node pc-1: " in refused.value.detail


@pytest.mark.unit
def test_what_other_starts_will_take_is_not_free() -> None:
    other = MemoryNeed(50 * GIB, 8 * GIB, ("a",))
    admit(MemoryNeed(50 * GIB, 8 * GIB, ("a",)), capacity(a=16 * GIB), [other], 0)
    with pytest.raises(AgentError):
        admit(MemoryNeed(51 * GIB, None, ()), capacity(), [other], 0)
    with pytest.raises(AgentError):
        admit(MemoryNeed(1, 9 * GIB, ("a",)), capacity(a=16 * GIB), [other], 0)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("known", "need", "unknown", "free"),
    [
        (MemoryNeed(1, 1, ("a",)), MemoryNeed(None, None, ("a",)), capacity(0, a=0), capacity(0, a=0)),
        (MemoryNeed(10**15, None, ()), MemoryNeed(10**15, None, ()), capacity(None), capacity(0)),
        (MemoryNeed(None, 10**15, ("a",)), MemoryNeed(None, 10**15, ("a",)), capacity(a=None), capacity(a=0)),
    ],
    ids=["need", "memory of the node", "memory of a card"],
)
def test_what_is_unknown_refuses_nothing(
    known: MemoryNeed, need: MemoryNeed, unknown: NodeCapacity, free: NodeCapacity
) -> None:
    admit(need, unknown, [], 0)
    with pytest.raises(AgentError):
        admit(known, free, [], 0)


@pytest.mark.unit
@given(st.integers(0, 2**40), st.integers(0, 2**40), st.lists(st.integers(0, 2**38), max_size=4), st.integers(0, 2**36))
def test_what_is_admitted_fits_and_what_fits_is_admitted(
    needed: int, available: int, taken: list[int], reserve: int
) -> None:
    fits = needed <= available - reserve - sum(taken)
    try:
        admit(MemoryNeed(needed, None, ()), capacity(available), [MemoryNeed(one, None, ()) for one in taken], reserve)
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
    admit(MemoryNeed(None, 10 * GIB, ("a",), gpu_reserve={"b": 9 * GIB}), capacity(a=12 * GIB), [], 0)
    with pytest.raises(AgentError) as refused:
        admit(MemoryNeed(None, 10 * GIB, ("a",), gpu_reserve={"a": 3 * GIB}), capacity(a=12 * GIB), [], 0)
    assert refused.value.fields["freeBytes"] == 9 * GIB


@pytest.fixture
def big_model(config: AgentConfig) -> SourceSpec:
    """A file that is larger than the memory of this machine, and takes no space on disk."""
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


async def test_gpus_that_are_not_here_are_named(node: Node) -> None:
    with pytest.raises(AgentError) as refused:
        await node.instances.launch("i1", "op1", spec(gpu_uuids=("GPU-9",)))
    assert refused.value.code is AgentCode.GPU_MISSING
