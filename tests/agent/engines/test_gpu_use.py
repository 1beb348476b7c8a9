"""Engines that were given a GPU and do not use it: said where it is known, and nowhere else."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent import clock
from agent.deliveries.base import Handle
from agent.running import gpu_use
from agent.running.record import InstanceRecord
from agent.telemetry import hidden
from agent.telemetry.cards import Card, Cards, Process
from agent.telemetry.usage import attribute, unused
from agent.wire.capability import Delivery, MemoryModel, Runtime
from agent.wire.instances import InstanceState
from agent.wire.status import GpuStatus
from tests.agent.engines.conftest import Node, spec
from tests.agent.engines.test_gpu_usage import GIB, Proc, proc, status, view
from tests.waiting import until_async

__all__ = ["proc"]

CLAIMS = {"i-qwen": ("GPU-1",)}
ONE = {"pid": 100, "gpu_uuids": ("GPU-1",)}


def idle(proc: Proc, *statuses: GpuStatus, claims: dict[str, tuple[str, ...]] | None = None, **also: object) -> bool:
    found = attribute(statuses, [view("qwen", **{**ONE, **also})], proc.folder)
    return "i-qwen" in unused(found, claims or CLAIMS, proc.folder)


def test_an_engine_without_a_process_on_its_card_does_not_use_it(proc: Proc) -> None:
    proc.add(100, 1, 100)
    proc.add(900, 1, 900, name="Xorg", group="0::/user.slice")
    assert idle(proc, status())
    assert idle(proc, status((900, GIB), process_count=1))


def test_an_engine_on_its_card_uses_it_by_itself_or_a_descendant_whatever_the_bytes(proc: Proc) -> None:
    proc.add(100, 1, 100)
    proc.add(101, 100, 101)
    for pid in (100, 101):
        for used in (GIB, 0, None):
            assert not idle(proc, status((pid, used)))
    assert not idle(proc, status(), status((101, GIB), uuid="GPU-2")), "on another card is no CPU"
    assert not idle(proc, status((101, 1)), status(uuid="GPU-2"), claims={"i-qwen": ("GPU-1", "GPU-2")})


@pytest.mark.parametrize(
    "reported",
    [
        {"processes": None},
        {"lost": True},
        {"problem": "GPU 1 needs a reset"},
        {"age_seconds": 12.0},
        {"process_count": 40},
    ],
)
def test_what_the_driver_does_not_list_is_unknown(proc: Proc, reported: dict[str, object]) -> None:
    proc.add(100, 1, 100)
    assert not idle(proc, status(**reported))


def test_processes_out_of_sight_may_be_the_engines(proc: Proc) -> None:
    proc.add(100, 1, 100)
    assert not idle(proc, status((4242, GIB))), "of another PID namespace"
    proc.add(500, 1, 500, group="0::/")
    assert not idle(proc, status((500, GIB))), "its control group is not shown"
    assert not idle(proc, status((4242, GIB)), pid=None, container_id="c" * 64)
    proc.add(600, 1, 600, group=f"0::/system.slice/docker-{'c' * 64}.scope")
    assert not idle(proc, status((600, GIB)), pid=None, container_id="c" * 64)
    proc.add(700, 1, 700, group=f"0::/system.slice/docker-{'d' * 64}.scope")
    assert idle(proc, status((700, GIB)), pid=None, container_id="c" * 64)


def test_a_card_that_is_not_reported_says_nothing(proc: Proc) -> None:
    proc.add(100, 1, 100)
    assert not idle(proc, status(uuid="GPU-2"))
    assert not idle(proc, claims={"i-qwen": ()})


@pytest.mark.parametrize(("namespace", "listed"), [("pid:[4026531836]", ()), ("pid:[4026532601]", None)])
def test_an_empty_list_proves_something_in_the_first_pid_namespace_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str, listed: tuple[()] | None
) -> None:
    (tmp_path / "pid").symlink_to(namespace)
    monkeypatch.setattr(hidden, "_PID_NAMESPACE", tmp_path / "pid")
    used = Card("GPU-1", 1, processes=(Process(7),))
    found = hidden.without_doubtful_lists(Cards((Card("GPU-0", 0, processes=()), used, Card("GPU-2", 2))))
    assert [one.processes for one in found.cards] == [listed, used.processes, None]
    monkeypatch.setattr(hidden, "_PID_NAMESPACE", tmp_path / "none")
    assert hidden.without_doubtful_lists(Cards((Card("GPU-0", 0, processes=()),))).cards[0].processes is None


def record(runtime: Runtime = Runtime.VLLM, ready: float = 120.0, **changes: object) -> InstanceRecord:
    now = datetime.now(UTC)
    order = spec(runtime=runtime, delivery=Delivery.CONTAINER, image="r/e", args=(), **changes)
    ready_at = (now - timedelta(seconds=ready)).isoformat()
    return InstanceRecord(
        instance_id="i1", operation_id="o", spec=order, api_key="k", state=InstanceState.READY, ready_at=ready_at
    )


def test_engines_that_hold_gpus_are_claims_once_they_have_settled(node: Node) -> None:
    context = node.instances._context
    context.cards, context.memory_model = Cards((Card("GPU-0", 0),)), MemoryModel.DISCRETE
    chosen = {"gpu_uuids": ("GPU-0",)}

    def claims(one: InstanceRecord) -> dict[str, tuple[str, ...]]:
        return gpu_use.claims([one], context, clock.now())

    assert claims(record(**chosen)) == {"i1": ("GPU-0",)}
    assert claims(record(ready=5, **chosen)) == {}
    assert claims(record()) == {}, "without a GPU on a machine with GPUs of their own it computes on the CPU by choice"
    shard = {"meeting": "m", "rank": 1, "world_size": 2, "address": "10.0.0.1", "port": 29500}
    assert claims(record(rendezvous=shard, **chosen)) == {}
    assert claims(record(rendezvous=shard, ready=700, **chosen)) == {"i1": ("GPU-0",)}
    starting = record(**chosen)
    starting.state = InstanceState.LOADING
    assert claims(starting) == {}
    context.memory_model = MemoryModel.UNIFIED
    assert claims(record()) == {"i1": ("GPU-0",)}
    assert claims(record(Runtime.SIM)) == {}
    wheel = record(Runtime.LLAMA_CPP)
    wheel.spec = wheel.spec.model_copy(update={"delivery": Delivery.PROCESS})
    assert claims(wheel) == {}


async def test_the_notice_is_in_the_view_and_the_status_and_goes_by_itself(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_use, "_SETTLED", timedelta(0))

    async def cards(*_: object) -> Cards:
        return Cards((Card("GPU-0", 3),))

    monkeypatch.setattr("agent.telemetry.gpu.cards", cards)
    await node.instances.launch("i1", "op1", spec(gpu_uuids=("GPU-0",)))
    ready = await node.until("i1", InstanceState.READY)
    reported = GpuStatus(uuid="GPU-0", index=3, processes=(), process_count=0)
    node.instances.with_owners((reported,))
    found = node.instances.view("i1")
    assert (found.state, found.notice_code) == (InstanceState.READY, "gpu_not_used")
    assert "Model m1 does not use GPU 3" in (found.notice or "")
    assert [(one.code, str(one)) for one in node.instances.notices()] == [("gpu_not_used", found.notice)]
    node.instances.with_owners((reported.model_copy(update={"processes": None}),))
    assert (node.instances.view("i1").notice, node.instances.notices()) == (None, ())
    process = {"pid": ready.pid, "used_bytes": 1}
    node.instances.with_owners((GpuStatus.model_validate({"uuid": "GPU-0", "processes": [process]}),))
    assert node.instances.view("i1").notice is None


async def test_a_docker_that_drops_the_request_is_a_notice_and_no_failure(node: Node) -> None:
    await node.instances.launch("i1", "op1", spec())
    await node.until("i1", InstanceState.READY)
    supervisor = node.instances._supervisors["i1"]
    handle = supervisor.record.handle
    assert handle is not None
    supervisor.record.handle = handle.model_copy(update={"without_gpus": True})
    found = node.instances.view("i1")
    assert (found.state, found.notice_code) == (InstanceState.READY, "gpu_request_dropped")
    assert Handle.model_validate({"launch_id": "an older record"}).without_gpus is False
    await node.instances.stop("i1", 1.0)
    await until_async(lambda: node.instances.view("i1").state is InstanceState.EXITED, "the engine to end")
    assert node.instances.view("i1").notice is None
