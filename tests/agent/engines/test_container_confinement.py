"""Reach of an engine in a container: capabilities, files, networks and GPUs."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.config import AgentConfig
from agent.deliveries import docker_network
from agent.deliveries.base import ImageSpec, RunSpec
from agent.deliveries.docker import DockerDelivery
from agent.deliveries.docker_engine import NO_TOOLKIT
from agent.running import run_spec
from agent.running.record import InstanceRecord
from agent.runtimes.base import WeightsSource
from agent.wire.capability import Runtime
from agent.wire.instances import InstanceState
from tests.agent.engines.conftest import Node, contained
from tests.bench import images
from tests.bench.docker import BenchImage, DockerBench

pytestmark = pytest.mark.container

_ATTEMPT = """
def attempt(call):
    try:
        call()
    except OSError as error:
        return type(error).__name__
    return "done"
"""

_INSIDE = (
    _ATTEMPT
    + """
import json, socket
found = {path: attempt(lambda: open(path + "/new", "w").close()) for path in ("/", "/etc", "/tmp")}
found["internet"] = attempt(lambda: socket.create_connection(("198.51.100.1", 443), 3))
found["name"] = attempt(lambda: socket.getaddrinfo("example.org", 443))
lines = dict(line.split(":\\t", 1) for line in open("/proc/1/status").read().splitlines() if ":\\t" in line)
found["status"] = {name: lines[name] for name in ("CapEff", "CapBnd", "NoNewPrivs")}
print(json.dumps(found))
"""
)

READY, EXITED = InstanceState.READY, InstanceState.EXITED


async def test_a_container_has_no_capability_no_way_out_and_no_file_to_write(
    dock: Node, docker_bench: DockerBench, sim: BenchImage
) -> None:
    await dock.instances.launch("i1", "op1", contained(sim))
    view = await dock.until("i1", READY, seconds=60)
    container = docker_bench.client.containers.get(view.container_id or "")
    host = container.attrs["HostConfig"]
    assert (host["CapDrop"], host["CapAdd"], host["ReadonlyRootfs"]) == (["ALL"], None, True)
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    found = json.loads(container.exec_run([images.python_in_image(), "-c", _INSIDE]).output)
    assert found.pop("status") == {"CapEff": "0000000000000000", "CapBnd": "0000000000000000", "NoNewPrivs": "1"}
    assert found.pop("internet") in {"OSError", "TimeoutError"}
    assert found == {"/": "OSError", "/etc": "OSError", "/tmp": "done", "name": "gaierror"}
    assert container.attrs["NetworkSettings"]["Networks"].keys() == {docker_network.NAME}
    await dock.restart()
    assert (await dock.until("i1", READY)).container_id == view.container_id
    assert dock.instances.target("i1").host == docker_network.address(container)[0]  # type: ignore[index]


_WRITES = (
    _ATTEMPT
    + """
import ctypes, glob, json, os, shutil, sys
def fill(name):
    folder = os.environ[name]
    os.makedirs(folder, exist_ok=True)
    open(folder + "/new", "w").close()
found = {name: attempt(lambda: fill(name)) for name in sys.argv[1:]}
for path in ("/", "/root", "/etc", "/opt"):
    found[path] = attempt(lambda: open(path + "/new", "w").close())
made = shutil.copy(glob.glob(sys.base_prefix + "/lib/python3.*/lib-dynload/_json*.so")[0], "/tmp/compiled.so")
found["compiled"] = attempt(lambda: ctypes.CDLL(made))
print(json.dumps(found))
"""
)


@pytest.mark.parametrize(("compiles", "writable"), [(True, False), (False, False), (True, True)])
async def test_an_engine_that_compiles_writes_and_loads_below_tmp_and_the_owner_may_open_its_image(
    docker_bench: DockerBench, sim: BenchImage, compiles: bool, writable: bool
) -> None:
    delivery = DockerDelivery(docker_bench.host, "f", "n")
    image = ImageSpec(
        sim.repository, sim.digest, None, (), 8000, 20_000, None, {}, compiles=compiles, writable_root=writable
    )
    order = RunSpec(
        instance_id="i1", launch_id="l1", argv=("--host", "0.0.0.0", "--port", "8000", "--served-name", "m"),
        env={"SIM_API_KEY": "k"}, log=Path("/dev/null"), image=image,
    )  # fmt: skip
    await delivery.prepare(order, lambda _: None)
    handle = await delivery.start(order)
    try:
        container = docker_bench.client.containers.get(handle.container_id or "")
        names = [] if writable else [*docker_network._CACHES, *(docker_network._COMPILER_CACHES if compiles else ())]
        names = [name for name in names if name != "USER"]
        found = json.loads(container.exec_run([images.python_in_image(), "-c", _WRITES, *names]).output)
        assert {name: found[name] for name in names} == dict.fromkeys(names, "done")
        outside = {found[path] for path in ("/", "/etc", "/opt")}
        assert outside == ({"done"} if writable else {"OSError"})
        assert found["compiled"] == ("done" if compiles or writable else "OSError")
        assert container.attrs["HostConfig"]["ReadonlyRootfs"] is not writable
        assert container.attrs["HostConfig"]["LogConfig"] == {
            "Type": "json-file", "Config": {"max-file": "2", "max-size": "8m"},
        }  # fmt: skip
    finally:
        await delivery.clean(handle)
        await delivery.close()


def test_an_image_that_is_closed_is_the_rule_and_the_switch_is_the_owner_s(node: Node) -> None:
    context = node.instances._context
    order = contained(BenchImage("r/e", "sha256:" + "a" * 64), runtime=Runtime.SIM)
    record = InstanceRecord(instance_id="i1", operation_id="o", spec=order, api_key="k", launch_id="l1", port=1)
    image = run_spec.build(record, None, context).image
    assert image is not None
    assert (image.writable_root, image.compiles, image.versions) == (False, False, None)
    vllm = record.model_copy(update={"spec": order.model_copy(update={"runtime": Runtime.VLLM, "args": ()})})
    weights = WeightsSource(path=Path("/srv/m"), mounts=(), size_bytes=1)
    image = run_spec.build(vllm, weights, context).image
    assert image is not None
    assert (image.writable_root, image.compiles) == (False, True)
    context.config = context.config.model_copy(update={"engine_writable_root": True})
    image = run_spec.build(record, None, context).image
    assert image is not None
    assert image.writable_root


async def test_the_owner_opens_the_internet_and_the_port_is_published_on_loopback(
    docker_config: AgentConfig, make_node: Callable[[AgentConfig], Node], docker_bench: DockerBench, sim: BenchImage
) -> None:
    node = make_node(docker_config.model_copy(update={"engine_internet": True}))
    await node.instances.recover()
    await node.instances.launch("i1", "op1", contained(sim))
    view = await node.until("i1", READY, seconds=60)
    container = docker_bench.client.containers.get(view.container_id or "")
    bindings = container.attrs["NetworkSettings"]["Ports"]["8000/tcp"]
    assert {binding["HostIp"] for binding in bindings} == {"127.0.0.1"}
    assert node.instances.target("i1").host == "127.0.0.1"
    await node.instances.stop_everything(1.0)


async def test_a_network_of_that_name_that_is_not_internal_is_refused(
    dock: Node, docker_bench: DockerBench, sim: BenchImage
) -> None:
    for network in docker_bench.client.networks.list(names=[docker_network.NAME]):
        network.remove()
    theirs = docker_bench.client.networks.create(docker_network.NAME, driver="bridge")
    await dock.instances.launch("i1", "op1", contained(sim))
    view = await dock.until("i1", EXITED, seconds=60)
    assert "is not internal" in (view.reason or "")
    theirs.remove()


@pytest.mark.parametrize(
    ("info", "isolates"),
    [
        ({"OperatingSystem": "Debian GNU/Linux 12", "SecurityOptions": ["name=seccomp,profile=builtin"]}, True),
        ({"OperatingSystem": "Debian GNU/Linux 12", "SecurityOptions": ["name=seccomp", "name=rootless"]}, False),
        ({"OperatingSystem": "Docker Desktop", "SecurityOptions": None}, False),
        ({}, True),
    ],
)
def test_docker_that_keeps_its_networks_to_itself_is_known(info: dict[str, object], isolates: bool) -> None:
    assert docker_network.can_isolate(info) is isolates


@pytest.mark.usefixtures("two_cards")
async def test_gpus_without_the_toolkit_name_what_to_install(dock: Node, sim: BenchImage) -> None:
    await dock.instances.launch("i1", "op1", contained(sim, gpu_uuids=("GPU-1",)))
    view = await dock.until("i1", EXITED, seconds=30)
    assert view.reason_code == "gpu_toolkit_missing"
    assert NO_TOOLKIT in (view.reason or "")


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
