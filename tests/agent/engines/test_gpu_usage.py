"""Owners of GPU memory: processes on GPUs belong to engines, at any remove; what cannot be read is split evenly."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.telemetry.usage import attribute
from agent.wire.capability import Delivery, Runtime
from agent.wire.instances import InstanceState, InstanceView
from agent.wire.status import GpuProcess, GpuStatus

GIB = 2**30


def view(name: str, **also: object) -> InstanceView:
    reported: dict[str, object] = {
        "instance_id": f"i-{name}", "model_id": name, "generation": 1, "config_hash": "0" * 64, "operation_id": "o",
        "runtime": Runtime.VLLM, "delivery": Delivery.PROCESS, "state": InstanceState.READY,
    }  # fmt: skip
    return InstanceView.model_validate(reported | also)


def status(*processes: tuple[int, int | None], uuid: str = "GPU-1", **also: object) -> GpuStatus:
    reported = tuple(GpuProcess(pid=pid, used_bytes=used) for pid, used in processes)
    return GpuStatus.model_validate({"uuid": uuid, "processes": reported, "used_bytes": 20 * GIB} | also)


class Proc:
    """A folder as /proc is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int, parent: int, session: int, *, name: str = "python3", group: str = "0::/user") -> None:
        place = self.folder / str(pid)
        place.mkdir()
        (place / "stat").write_text(f"{pid} ({name}) S {parent} {pid} {session} 0 -1 0 0")
        (place / "cgroup").write_text(f"{group}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def uses(found: GpuStatus) -> list[tuple[str, int | None, bool]]:
    return [(use.model_id, use.used_bytes, use.measured) for use in found.models]


def test_memory_of_an_engines_descendants_is_the_engines(proc: Proc) -> None:
    proc.add(100, 1, 100)
    proc.add(101, 100, 100)
    proc.add(102, 101, 102)  # a worker that made a session of its own
    proc.add(900, 1, 900, name="Xorg")
    (found,) = attribute([status((100, GIB), (102, 4 * GIB), (900, GIB))], [view("qwen", pid=100)], proc.folder)
    assert uses(found) == [("qwen", 5 * GIB, True)]
    assert [(one.pid, one.instance_id, one.name) for one in found.processes or ()] == [
        (100, "i-qwen", "python3"), (102, "i-qwen", "python3"), (900, "", "Xorg"),
    ]  # fmt: skip


def test_a_worker_whose_parent_ended_is_known_by_its_session(proc: Proc) -> None:
    proc.add(102, 1, 100)
    (found,) = attribute([status((102, 4 * GIB))], [view("qwen", pid=100)], proc.folder)
    assert uses(found) == [("qwen", 4 * GIB, True)]


def test_a_process_in_a_container_is_known_by_its_group(proc: Proc) -> None:
    container = "c" * 64
    proc.add(55, 44, 44, group=f"0::/system.slice/docker-{container}.scope")
    (found,) = attribute(
        [status((55, 4 * GIB))], [view("qwen", container_id=container), view("phi", pid=9)], proc.folder
    )
    assert uses(found) == [("qwen", 4 * GIB, True)]


def test_a_name_with_a_bracket_and_a_process_that_is_gone_are_no_trouble(proc: Proc) -> None:
    proc.add(7, 100, 100, name="a) S 1 (b")
    (found,) = attribute([status((7, GIB), (8, GIB))], [view("qwen", pid=100)], proc.folder)
    assert uses(found) == [("qwen", GIB, True)]
    assert [one.instance_id for one in found.processes or ()] == ["i-qwen", ""]


def test_a_model_on_two_gpus_is_measured_on_each(proc: Proc) -> None:
    proc.add(100, 1, 100)
    proc.add(101, 100, 100)
    one, two = attribute(
        [status((100, 3 * GIB)), status((101, 5 * GIB), uuid="GPU-2")],
        [view("qwen", pid=100, gpu_uuids=("GPU-1", "GPU-2"))],
        proc.folder,
    )
    assert (uses(one), uses(two)) == ([("qwen", 3 * GIB, True)], [("qwen", 5 * GIB, True)])


def test_what_cannot_be_read_is_split_evenly_and_says_so(proc: Proc) -> None:
    engines = [view("a", pid=1, gpu_uuids=("GPU-1", "GPU-2")), view("b", pid=2, gpu_uuids=("GPU-1",))]
    cards = [
        status(processes=None, used_bytes=12 * GIB),
        status(processes=None, used_bytes=4 * GIB, uuid="GPU-2"),
        status(processes=None, used_bytes=None, uuid="GPU-3"),
    ]
    one, two, three = attribute(cards, engines, proc.folder)
    assert uses(one) == [("a", 6 * GIB, False), ("b", 6 * GIB, False)]
    assert uses(two) == [("a", 4 * GIB, False)]
    assert uses(three) == []


def test_of_processes_without_a_number_only_the_rest_is_split(proc: Proc) -> None:
    proc.add(100, 1, 100)
    proc.add(200, 1, 200)
    proc.add(300, 1, 300)
    (found,) = attribute(
        [status((100, 5 * GIB), (200, None), (300, 3 * GIB), used_bytes=20 * GIB)],
        [view("a", pid=100), view("b", pid=200)],
        proc.folder,
    )
    assert uses(found) == [("a", 5 * GIB, True), ("b", 12 * GIB, False)]


def test_a_share_of_what_is_unknown_is_unknown(proc: Proc) -> None:
    (found,) = attribute([status(processes=None, used_bytes=None)], [view("a", gpu_uuids=("GPU-1",))], proc.folder)
    assert uses(found) == [("a", None, False)]


def test_an_engine_that_has_ended_holds_nothing(proc: Proc) -> None:
    (found,) = attribute(
        [status(processes=None)], [view("a", state=InstanceState.EXITED, gpu_uuids=("GPU-1",))], proc.folder
    )
    assert uses(found) == []


def test_an_engine_that_is_placed_on_a_card_and_not_there_yet_holds_nothing_of_it(proc: Proc) -> None:
    (found,) = attribute([status()], [view("a", gpu_uuids=("GPU-1",))], proc.folder)
    assert uses(found) == []


def test_real_descendants_are_found() -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True) as leader:
        while not (children := Path(f"/proc/{leader.pid}/task/{leader.pid}/children").read_text().split()):
            pass
        reported = status((int(children[0]), GIB), (os.getpid(), GIB))
        (found,) = attribute([reported], [view("a", pid=leader.pid)])
        leader.communicate(b"\n")
    assert uses(found) == [("a", GIB, True)]


def test_a_card_that_tells_no_processes_is_split_though_another_tells_them(proc: Proc) -> None:
    proc.add(100, 1, 100)
    engine = view("a", pid=100, gpu_uuids=("GPU-1", "GPU-2"))
    reported, closed = attribute(
        [status((100, 3 * GIB)), status(processes=None, used_bytes=7 * GIB, uuid="GPU-2")], [engine], proc.folder
    )
    assert (uses(reported), uses(closed)) == ([("a", 3 * GIB, True)], [("a", 7 * GIB, False)])


def test_processes_that_are_hidden_from_the_agent_may_be_the_engines(proc: Proc) -> None:
    proc.add(100, 1, 100)
    proc.add(900, 1, 900, name="Xorg")
    reported = status((900, GIB), (7777, 12 * GIB), used_bytes=14 * GIB)
    (found,) = attribute([reported], [view("a", pid=100, gpu_uuids=("GPU-1",))], proc.folder)
    assert uses(found) == [("a", 13 * GIB, False)]
