"""Shards of a replica on an agent: rendezvous, arguments of each engine, refusals."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.deliveries import docker_container
from agent.deliveries.base import ImageSpec
from agent.errors import AgentError
from agent.running import rendezvous as local_rendezvous
from agent.running import run_spec as run_specs
from agent.running.record import InstanceRecord
from agent.runtimes import RUNTIMES
from agent.runtimes.base import Allocation, LocalRendezvous, WeightsSource
from agent.wire.capability import Delivery, Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState, LaunchSpec, Rendezvous, SourceSpec
from tests.agent.engines.conftest import Node, spec

pytestmark = pytest.mark.unit

ALLOCATION = Allocation(
    host="127.0.0.1", port=20_001, api_key="the-key", threads=3, source=WeightsSource(Path("/m/x"), (Path("/m"),), 10)
)
RENDEZVOUS = LocalRendezvous(
    name="op-1", rank=0, world_size=2, address="192.0.2.10", port=29500, own_address="192.0.2.10", interface="eth0",
    devices=("mlx5_2", "mlx5_3"),
)  # fmt: skip


def rendezvous(rank: int = 0, size: int = 2, port: int | None = None, **more: object) -> Rendezvous:
    values = {"meeting": "op-1", "rank": rank, "world_size": size, "address": "127.0.0.1", "port": port}
    return Rendezvous.model_validate(values | more)


def vllm(**changes: object) -> LaunchSpec:
    values = {"runtime": Runtime.VLLM, "source": SourceSpec(folder="x"), "args": (), "rendezvous": rendezvous()}
    return spec(**values | changes)


@pytest.fixture
def root(tmp_path: Path) -> AgentConfig:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "model.safetensors").write_bytes(b"12345")
    (tmp_path / "x" / "model.gguf").write_bytes(b"123")
    return AgentConfig(models_root=tmp_path, state_dir=tmp_path / "state", vllm_command="vllm")


def argv_of(root: AgentConfig, launch: LaunchSpec, where: LocalRendezvous = RENDEZVOUS) -> list[str]:
    return list(RUNTIMES[Runtime.VLLM].command(launch, root, replace(ALLOCATION, rendezvous=where)).argv)


def test_rank_0_of_vllm_serves_and_the_others_are_headless(root: AgentConfig) -> None:
    launch = vllm(gpu_uuids=("GPU-1", "GPU-2"))
    head = argv_of(root, launch)
    assert head[:3] == ["vllm", "serve", "/m/x"]
    assert head[head.index("--distributed-executor-backend") :] == [
        "--distributed-executor-backend", "mp", "--nnodes", "2", "--node-rank", "0", "--master-addr", "192.0.2.10",
        "--master-port", "29500", "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2",
    ]  # fmt: skip
    worker = argv_of(root, launch, replace(RENDEZVOUS, rank=1))
    assert worker[-1] == "--headless"
    assert [worker[worker.index("--node-rank") + 1], worker.count("--headless"), "--headless" in head] == [
        "1",
        1,
        False,
    ]


@pytest.mark.parametrize(
    ("args", "gpus", "tensor"),
    [((), 0, 1), ((), 4, 4), (("--pipeline-parallel-size", "1"), 4, 8), (("-pp=1",), 1, 2), (("-pp", "4"), 2, 1)],
)
def test_every_gpu_of_every_node_is_used_once(root: AgentConfig, args: tuple[str, ...], gpus: int, tensor: int) -> None:
    argv = argv_of(root, vllm(args=args, gpu_uuids=tuple(f"GPU-{number}" for number in range(gpus))))
    assert argv[argv.index("--tensor-parallel-size") + 1] == str(tensor)
    assert sum(part.startswith(("--pipeline-parallel-size", "-pp")) for part in argv) == 1


@pytest.mark.parametrize(
    "args",
    [
        ("--pipeline-parallel-size", "3"), ("-pp", "0"), ("-pp", "two"), ("-pp",),
        ("--distributed-executor-backend", "ray"), ("--distributed_executor_backend=mp",),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_and_another_back_end_are_refused(root: AgentConfig, args: tuple[str, ...]) -> None:
    with pytest.raises(AgentError) as refused:
        RUNTIMES[Runtime.VLLM].prepare(vllm(args=args), root)
    assert refused.value.code is AgentCode.SPEC_REJECTED


def environment(root: AgentConfig, where: LocalRendezvous, **changes: object) -> dict[str, str]:
    return dict(RUNTIMES[Runtime.VLLM].command(vllm(**changes), root, replace(ALLOCATION, rendezvous=where)).env)


def test_nccl_is_told_the_adapters_of_the_fabric_and_no_others(root: AgentConfig) -> None:
    env = environment(root, RENDEZVOUS)
    assert env["NCCL_IB_HCA"] == "=mlx5_2,mlx5_3", "an exact match: mlx5_2 is not mlx5_20"
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == ("=eth0", "eth0")
    assert env["VLLM_HOST_IP"] == "192.0.2.10"
    assert "NCCL_IB_DISABLE" not in env
    plain = environment(root, replace(RENDEZVOUS, devices=(), interfaces=("eth1", "eth2")))
    assert (plain["NCCL_IB_DISABLE"], plain["NCCL_SOCKET_IFNAME"]) == ("1", "=eth1,eth2")
    mine = environment(root, RENDEZVOUS, env={"NCCL_IB_HCA": "mlx5_9", "NCCL_DEBUG": "INFO"})
    assert "NCCL_IB_HCA" not in mine, "what a person set stays theirs"


def test_llama_cpp_and_simulated_containers_have_no_shards(root: AgentConfig) -> None:
    for launch, said in (
        (vllm(runtime=Runtime.LLAMA_CPP), "llama.cpp runs on one node"),
        (spec(rendezvous=rendezvous(), delivery=Delivery.CONTAINER, image="sim:1"), "as processes only"),
    ):
        with pytest.raises(AgentError, match=said) as refused:
            RUNTIMES[launch.runtime].prepare(launch, root)
        assert refused.value.code is AgentCode.SPEC_REJECTED


@pytest.mark.parametrize("argument", ["--rank", "--world-size=3", "--meeting", "--rendezvous-port"])
def test_a_person_does_not_say_where_shards_meet(root: AgentConfig, argument: str) -> None:
    with pytest.raises(AgentError):
        RUNTIMES[Runtime.SIM].prepare(spec(args=(argument, "1")), root)


def test_a_machine_adds_its_own_address_and_tells_adapters_apart(tmp_path: Path) -> None:
    (tmp_path / "class/infiniband/mlx5_2").mkdir(parents=True)
    found = local_rendezvous.localize(rendezvous(1, port=29501, adapters=("mlx5_2", "eth1")), 29501, tmp_path)
    assert (found.own_address, found.interface) == ("127.0.0.1", "lo")
    assert (found.devices, found.interfaces, found.port) == (("mlx5_2",), ("eth1",), 29501)
    assert local_rendezvous.own_address("no-such-host.invalid") is None


def test_a_shard_in_a_container_uses_the_network_of_its_machine(node: Node) -> None:
    launch = vllm(delivery=Delivery.CONTAINER, image="vllm:1", rendezvous=rendezvous(1, port=29501))
    record = InstanceRecord(
        instance_id="i1", operation_id="op:1", spec=launch, api_key="k", port=20_005, launch_id="l1"
    )
    run_spec = run_specs.build(record, ALLOCATION.source, node.instances._context)
    assert isinstance(run_spec.image, ImageSpec)
    assert run_spec.image.shares_network
    assert run_spec.argv[run_spec.argv.index("--host") + 1 :][:3] == ("127.0.0.1", "--port", "20005")
    settings: dict[str, object] = {"ports": {"8000/tcp": ("127.0.0.1", 20_005)}}
    docker_container.share_network(settings)
    assert (settings["network_mode"], "ports" in settings) == ("host", False)


async def test_rank_0_chooses_the_port_and_no_two_get_the_same(node: Node) -> None:
    views = [
        await node.instances.launch(f"i{number}", f"op-{number}:starting", spec(rendezvous=rendezvous()))
        for number in range(3)
    ]
    first, last = node.config.rendezvous_ports
    chosen = [view.rendezvous_port for view in views]
    assert len(set(chosen)) == 3
    assert all(port is not None and first <= port <= last for port in chosen)
    again = await node.instances.launch("i0", "op-0:starting", spec(rendezvous=rendezvous()))
    assert again.rendezvous_port == chosen[0], "a repeat gets the same answer"


async def test_two_shards_serve_when_both_are_there_and_a_lost_one_is_noticed(node: Node) -> None:
    head = await node.instances.launch("head", "op:starting", spec(rendezvous=rendezvous()))
    await node.until("head", InstanceState.LOADING)
    assert not [view for view in node.reported if view.state is InstanceState.READY], "one of two is not enough"
    await node.instances.launch("worker", "op2:starting", spec(rendezvous=rendezvous(1, port=head.rendezvous_port)))
    await node.until("head", InstanceState.READY)
    await node.until("worker", InstanceState.READY)
    pid = node.instances.view("worker").pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    await node.until("worker", InstanceState.EXITED)
    await node.until("head", InstanceState.UNHEALTHY)
    await node.instances.stop("head", 2.0)
    ended = await node.until("head", InstanceState.EXITED)
    assert ended.rendezvous_port is not None


async def test_a_headless_shard_counts_as_ready_once_it_has_lived(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated engine in place of one without a health endpoint."""
    monkeypatch.setattr(type(RUNTIMES[Runtime.SIM]), "has_health_endpoint", lambda self, spec: False)
    node.instances._context.intervals = replace(node.instances._context.intervals, headless_seconds=0.3)
    await node.instances.launch("quiet", "op:1", spec(args=("--never-ready",)))
    view = await node.until("quiet", InstanceState.READY)
    assert view.start_seconds is not None
    assert view.start_seconds >= 0.3


async def test_no_port_left_to_meet_at_is_said(node: Node, config: AgentConfig, make_node) -> None:
    full = make_node(
        config.model_copy(update={"rendezvous_ports": (29_500, 29_500), "state_dir": config.state_dir / "b"})
    )
    await full.instances.recover()
    await full.instances.launch("i1", "op-1:s", spec(rendezvous=rendezvous()))
    with pytest.raises(AgentError, match="rendezvous_ports"):
        await full.instances.launch("i2", "op-2:s", spec(rendezvous=rendezvous()))
