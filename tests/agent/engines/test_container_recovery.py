"""Containers after a restart of the agent or of Docker: which are taken up, and what is told of the others."""

import asyncio
import json
import shutil
from pathlib import Path

import docker.errors
import pytest

from agent.config import AgentConfig
from agent.deliveries.docker import DockerDelivery
from agent.running import run_spec as run_specs
from agent.wire.instances import InstanceState
from tests.agent.engines.conftest import Node, contained
from tests.bench.docker import BenchImage, DockerBench
from tests.waiting import until_async

pytestmark = pytest.mark.container

READY, EXITED = InstanceState.READY, InstanceState.EXITED


async def test_a_container_is_adopted_after_a_restart_of_the_agent_and_its_log_is_read_again(
    dock: Node, sim: BenchImage
) -> None:
    await dock.instances.launch("i1", "op1", contained(sim))
    before = await dock.until("i1", READY, seconds=60)
    lines = (await dock.instances.log("i1", 10, None)).lines
    (dock.config.state_dir / "instances" / "i1.log").unlink()
    await dock.restart()
    after = await dock.until("i1", READY)
    assert after.container_id == before.container_id
    log = dock.config.state_dir / "instances" / "i1.log"
    await until_async(lambda: log.exists() and log.read_bytes().count(b"\n") >= len(lines), "the log to be read again")
    again = (await dock.instances.log("i1", 10, None)).lines
    assert lines
    assert again[: len(lines)] == lines


async def test_a_container_whose_record_was_lost_is_taken_up_by_its_labels(dock: Node, sim: BenchImage) -> None:
    await dock.instances.launch("i1", "op1", contained(sim))
    before = await dock.until("i1", READY, seconds=60)
    target = dock.instances.target("i1")
    await dock.instances.close()
    shutil.rmtree(dock.config.state_dir)
    dock.instances = dock.new_agent()
    await dock.instances.recover()
    after = await dock.until("i1", READY)
    assert (after.container_id, after.operation_id, after.model_id) == (before.container_id, "op1", "m1")
    assert dock.instances.target("i1") == target


async def test_containers_of_others_are_never_touched(
    dock: Node, docker_bench: DockerBench, sim: BenchImage, docker_config: AgentConfig, tmp_path: Path
) -> None:
    await dock.instances.launch("i1", "op1", contained(sim))
    mine = await dock.until("i1", READY, seconds=60)
    client = docker_bench.client
    stranger = client.containers.run(sim.reference, [], detach=True)
    neighbour = Node(docker_config.model_copy(update={"state_dir": tmp_path / "other"}))
    await neighbour.instances.close()
    neighbour.instances = type(neighbour.instances)(neighbour.config, "e" * 16, neighbour._report, node="n1")
    await neighbour.instances.recover()
    assert neighbour.instances.views() == ()
    assert await neighbour.instances.stop_everything(0.1) == ()
    await neighbour.instances.close()
    assert await dock.instances.stop_everything(2.0) == ("i1",)
    stranger.reload()
    assert stranger.status == "running"
    with pytest.raises(docker.errors.NotFound):
        client.containers.get(mine.container_id or "")


async def test_a_container_that_was_made_and_never_started_is_not_taken_for_an_engine(
    dock: Node, docker_bench: DockerBench, sim: BenchImage
) -> None:
    """The agent died between `create` and `start`: the leftover is removed and the launch goes on, once."""
    await dock.instances.launch("i1", "op1", contained(sim, args=("--never-ready",)))
    await dock.until("i1", InstanceState.LOADING, seconds=60)
    supervisor = dock.instances._supervisors["i1"]
    delivery = supervisor.delivery
    assert isinstance(delivery, DockerDelivery)
    run_spec = run_specs.build(supervisor.record, None, dock.instances._context)
    assert run_spec.image is not None
    await dock.instances.close()
    client = docker_bench.client
    for container in client.containers.list(all=True):
        container.remove(force=True)
    settings = delivery._settings(run_spec, run_spec.image)
    leftover = client.containers.create(**settings)
    path = dock.config.state_dir / "instances" / "i1.json"
    record = json.loads(path.read_text())
    record |= {"handle": None, "state": "starting"}
    record["spec"]["args"] = []
    path.write_text(json.dumps(record))
    (dock.config.state_dir / "instances" / "i1.log").unlink()
    dock.instances = dock.new_agent()
    await dock.instances.recover()
    view = await dock.until("i1", READY, seconds=60)
    assert view.container_id != leftover.id
    assert len(client.containers.list(all=True)) == 1


@pytest.mark.faults
async def test_while_docker_is_away_nothing_is_given_up_and_afterwards_the_truth_is_told(
    dock: Node, sim: BenchImage, restarted_engine: DockerBench
) -> None:
    await dock.instances.launch("i1", "op1", contained(sim))
    await dock.until("i1", READY, seconds=60)
    await dock.instances.close()
    await asyncio.to_thread(restarted_engine.stop_engine)
    dock.instances = dock.new_agent()
    await dock.instances.recover()
    view = await dock.until("i1", InstanceState.UNHEALTHY)
    assert "Docker does not answer" in (view.reason or "")
    await asyncio.to_thread(restarted_engine.start_engine)
    ended = await dock.until("i1", InstanceState.LOST, seconds=30)
    assert (ended.stop_requested, ended.reason_code) == (False, "docker_restarted")
    assert ended.exit_code is not None


# Docker's library leaks the socket of a call that a stopping Docker cuts off.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.faults
async def test_docker_that_is_restarted_under_its_containers_is_told_from_an_engine_that_dies(
    dock: Node, sim: BenchImage, restarted_engine: DockerBench
) -> None:
    for name in ("i1", "i2"):
        await dock.instances.launch(name, "op1", contained(sim))
        await dock.until(name, READY, seconds=60)
    dying = dock.instances.view("i2").container_id or ""
    await asyncio.to_thread(restarted_engine.client.containers.get(dying).kill)
    died = await dock.until("i2", EXITED, seconds=30)
    assert (died.reason_code, died.exit_signal) == ("engine_exited", "SIGKILL")
    await asyncio.to_thread(restarted_engine.stop_engine)
    await asyncio.to_thread(restarted_engine.start_engine)
    lost = await dock.until("i1", InstanceState.LOST, seconds=30)
    assert (lost.reason_code, "Docker was restarted" in (lost.reason or "")) == ("docker_restarted", True)
    assert dock.instances.view("i2").state is EXITED
    # Docker has been running for longer than a new container: its death is its own.
    await dock.instances.launch("i1", "op2", contained(sim))
    again = await dock.until("i1", READY, seconds=60)
    await asyncio.to_thread(restarted_engine.client.containers.get(again.container_id or "").kill)
    assert (await dock.until("i1", EXITED, seconds=30)).reason_code == "engine_exited"
