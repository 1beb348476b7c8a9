"""Processors and memory that the agent may use: affinity, and control groups of both versions up to the root."""

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from agent import admission, capability
from agent.admission import GIB
from agent.config import AgentConfig
from agent.running.run_spec import threads
from agent.telemetry import cgroups, cores, host

pytestmark = pytest.mark.unit
NONE_V1 = "9223372036854771712\n"


class Groups:
    """A made-up ``/proc/self`` and mounted control groups."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.point = folder / "proc", folder / "sys fs" / "cgroup"
        self.proc.mkdir()
        self.point.mkdir(parents=True)
        self._mounts: list[str] = []

    def mount(self, kind: str, controllers: str = "", root: str = "/") -> Path:
        point = self.point / controllers if controllers else self.point
        point.mkdir(exist_ok=True)
        shown = str(point).replace(" ", "\\040")
        self._mounts.append(f"31 23 0:28 {root} {shown} rw,relatime shared:9 - {kind} {kind} rw,{controllers}")
        (self.proc / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda rw\n" + "\n".join(self._mounts) + "\n")
        return point

    def own(self, *lines: str) -> None:
        (self.proc / "cgroup").write_text("\n".join(lines) + "\n")

    def write(self, point: Path, group: str, **files: str) -> None:
        folder = point / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return Groups(tmp_path)


def v2(groups: Groups, own: str = "/system.slice/agent.service", root: str = "/") -> Path:
    point = groups.mount("cgroup2", root=root)
    groups.own(f"0::{own}")
    return point


def test_a_limit_on_any_level_of_version_2_holds(groups: Groups) -> None:
    point = v2(groups, "/a.slice/b.slice/agent.service")
    groups.write(point, "a.slice", cpu__max="400000 100000\n", memory__max="max\n", memory__current="1\n")
    groups.write(point, "a.slice/b.slice", cpu__max="max 100000\n", memory__max=f"{8 * GIB}\n",
                 memory__current=f"{6 * GIB}\n", memory__stat="")  # fmt: skip
    groups.write(point, "a.slice/b.slice/agent.service", cpu__max="150000 100000\n", memory__max=f"{12 * GIB}\n",
                 memory__current=f"{GIB}\n", memory__stat="")  # fmt: skip
    assert cgroups.cpu_quota(groups.proc) == 1.5
    assert cgroups.memory_limit(groups.proc) == 8 * GIB
    assert cgroups.memory_free(groups.proc) == 2 * GIB, "by the tightest level, not by the smallest limit"
    groups.write(point, "a.slice/b.slice/agent.service", memory__high=f"{2 * GIB}\n")
    assert cgroups.memory_limit(groups.proc) == 2 * GIB, "above memory.high the kernel throttles"


@pytest.mark.parametrize(
    ("own", "root"),
    [("/", "/"), ("/docker/abc", "/docker/abc"), ("/docker/abc", "/"), ("/../../docker/abc", "/.."), ("/..", "/")],
    ids=["namespace", "host's path", "hidden path", "outside", "parent"],
)
def test_a_container_reads_the_limits_at_its_mount_point(groups: Groups, own: str, root: str) -> None:
    point = v2(groups, own, root)
    groups.write(point, ".", cpu__max="200000 100000\n", memory__max=f"{4 * GIB}\n", memory__current=f"{GIB}\n")
    assert (cgroups.cpu_quota(groups.proc), cgroups.memory_limit(groups.proc)) == (2.0, 4 * GIB)
    assert cgroups.memory_free(groups.proc) == 3 * GIB


def test_limits_of_version_1_are_read_on_every_level(groups: Groups) -> None:
    cpu, memory = groups.mount("cgroup", "cpu,cpuacct"), groups.mount("cgroup", "memory")
    groups.mount("cgroup", "pids")
    groups.own("5:pids:/x", "4:memory:/user/job", "3:cpu,cpuacct:/user/job", "1:name=systemd:/y", "0::/")
    groups.write(cpu, "user", cpu__cfs_quota_us="200000\n", cpu__cfs_period_us="100000\n")
    groups.write(cpu, "user/job", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    groups.write(memory, "user", memory__limit_in_bytes=f"{6 * GIB}\n", memory__usage_in_bytes=f"{5 * GIB}\n",
                 memory__stat=f"active_file 1\ntotal_active_file {GIB}\ntotal_inactive_file {2 * GIB}\n"
                              f"total_mapped_file {GIB}\nnonsense\n")  # fmt: skip
    groups.write(memory, "user/job", memory__limit_in_bytes=NONE_V1, memory__usage_in_bytes="7\n")
    assert cgroups.cpu_quota(groups.proc) == 2.0
    assert cgroups.memory_limit(groups.proc) == 6 * GIB
    assert cgroups.memory_free(groups.proc) == 3 * GIB, "cached files go first, those of a running engine do not"


def test_without_limits_there_are_none_and_nothing_that_cannot_be_read_is_one(groups: Groups) -> None:
    assert (cgroups.cpu_quota(groups.proc), cgroups.memory_limit(groups.proc)) == (None, None)
    point = v2(groups)
    assert cgroups.memory_free(groups.proc) is None
    groups.write(point, "system.slice", cpu__max="max 100000\n", memory__max="max\n", memory__current="5\n")
    groups.write(point, "system.slice/agent.service", cpu__max="\n", memory__max="x\n", memory__current="\n")
    assert (cgroups.cpu_quota(groups.proc), cgroups.memory_limit(groups.proc)) == (None, None)
    assert cgroups.memory_free(groups.proc) is None


def topology(folder: Path, cpus: int, siblings: int = 2, name: str = "core_cpus_list") -> Path:
    for number in range(cpus):
        own = folder / f"cpu{number}" / "topology"
        own.mkdir(parents=True)
        first = number - number % siblings
        (own / name).write_text(f"{first}-{first + siblings - 1}\n")
    return folder


@pytest.mark.parametrize(
    ("allowed", "quota", "cpus", "real"),
    [
        (range(64), None, 64, 32),
        ((0, 1), None, 2, 1),
        ((0, 2), None, 2, 2),
        (range(64), "200000 100000", 2, 2),
        (range(64), "850000 100000", 8, 8),
        (range(64), "50000 100000", 1, 1),
        (range(8), "6400000 100000", 8, 4),
    ],
)
@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list", ""])
def test_cores_are_those_that_may_be_used(
    groups: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed, quota, cpus, real, name
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))
    if quota:
        groups.write(v2(groups), "system.slice", cpu__max=f"{quota}\n")
    known = topology(tmp_path / "cpu", 64, name=name) if name else tmp_path / "none"
    assert cores.usable_cpus(groups.proc) == cpus
    assert cores.usable_cores(known, groups.proc) == (real if name else cpus)


@pytest.mark.parametrize(("found", "given"), [(1, 1), (2, 1), (3, 2), (64, 63)])
def test_an_engine_gets_the_cores_of_the_agent_less_one(
    monkeypatch: pytest.MonkeyPatch, found: int, given: int
) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: found)
    assert threads(AgentConfig()) == given
    assert threads(AgentConfig(engine_threads=5)) == 5


def test_memory_of_the_node_is_what_its_groups_allow(groups: Groups, tmp_path: Path, monkeypatch) -> None:
    machine = SimpleNamespace(total=64 * GIB, available=50 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(cgroups, "memory_limit", lambda: 8 * GIB)
    monkeypatch.setattr(cgroups, "memory_free", lambda: 3 * GIB)
    status = host.read_host(tmp_path, engine_threads=lambda: 7)
    assert (status.memory_total_bytes, status.memory_available_bytes) == (8 * GIB, 3 * GIB)
    assert status.engine_threads == 7
    monkeypatch.setattr(cgroups, "memory_limit", lambda: 128 * GIB)
    monkeypatch.setattr(cgroups, "memory_free", lambda: 128 * GIB)
    status = host.read_host(tmp_path)
    assert (status.memory_total_bytes, status.memory_available_bytes) == (64 * GIB, 50 * GIB)


@pytest.mark.parametrize("total", [1, 2, 3.8, 4])
def test_a_small_machine_keeps_memory_for_models_whatever_its_owner_reserves(total: float, monkeypatch) -> None:
    size = int(total * GIB)
    monkeypatch.setattr(host, "total_memory_bytes", lambda: size)
    for config in (AgentConfig(), AgentConfig(memory_reserve_gib=4), AgentConfig(memory_reserve_gib=64)):
        assert admission.reserve_bytes(config, size) == size // 4
    assert capability._reserve_warnings(AgentConfig()) == ()
    (warning,) = capability._reserve_warnings(AgentConfig(memory_reserve_gib=4))
    assert warning.startswith("memory_reserve_gib in agent.json is 4 GiB, all memory of this node")


def test_the_example_leaves_the_reserve_to_the_agent() -> None:
    example = Path(__file__).resolve().parents[3] / "deploy" / "agent" / "agent.json.example"
    config = AgentConfig.model_validate_json(example.read_text())
    assert admission.owner_reserve(config) is None
